package tokenizer

import (
	"bytes"
	"fmt"
	"math/bits"
	"strings"
	"sync"
)

type pair struct{ left, right int32 }

// A merge is what a pair becomes, and when: low ranks first.
type merge struct{ rank, id int32 }

// A mergeTable finds the merge of a pair. It is a hash table with open addressing, at most half full: half a million merges are put into
// it with every run.
type mergeTable struct {
	read  bool // the file has merges, though perhaps none
	slots []mergeSlot
	shift int // of a hash, to a slot's number
}

type mergeSlot struct {
	pair
	after, id int32 // one more than the rank, 0 in a free slot; and what the pair becomes
}

// build fills the table with merges in their order of priority. Of a pair that is there twice, the last one counts.
func (t *mergeTable) build(pairs []pair, ids []int32) {
	t.shift = 63 - bits.Len(uint(len(pairs)))
	t.slots = make([]mergeSlot, 1<<(64-t.shift))
	for rank, p := range pairs {
		*t.slot(p) = mergeSlot{p, int32(rank) + 1, ids[rank]}
	}
}

// slot is the pair's, or the free one that it may have.
func (t *mergeTable) slot(p pair) *mergeSlot {
	const golden = 0x9e3779b97f4a7c15 // 2⁶⁴ over the golden ratio (Knuth, volume 3, 6.4)
	for i := (uint64(uint32(p.left))<<32 | uint64(uint32(p.right))) * golden >> t.shift; ; i++ {
		if s := &t.slots[i&uint64(len(t.slots)-1)]; s.after == 0 || s.pair == p {
			return s
		}
	}
}

func (t *mergeTable) find(p pair) (merge, bool) {
	s := t.slot(p)
	return merge{s.after - 1, s.id}, s.after > 0
}

// A mergeBatch is some merges in a row. Their tokens are looked up while the next ones are read.
type mergeBatch struct {
	texts   *mergeTexts // until they are looked up
	pairs   []pair
	ids     []int32
	unknown error // the first token that the vocabulary lacks
	at      int   // its merge's place in the file's array
}

// mergeTexts are the tokens of a batch's merges, by their places in the file's array. Few are alive at a time.
type mergeTexts struct {
	index       [batchMerges]int32
	left, right [batchMerges][]byte
	n           int
}

const batchMerges = 4096

// merges reads the merges, each "left right" or ["left", "right"], the most important first.
func (r *reader) merges(m *model) {
	var all []*mergeBatch
	var wait sync.WaitGroup
	texts := sync.Pool{New: func() any { return new(mergeTexts) }}
	begin := func(t *mergeTexts) {
		b := &mergeBatch{texts: t}
		all = append(all, b)
		wait.Go(func() {
			b.lookUp(m.ids)
			b.texts = nil
			t.n = 0
			texts.Put(t)
		})
	}
	t := texts.Get().(*mergeTexts)
	r.array(func(i int) {
		left, right, ok := r.merge()
		if !ok {
			return
		}
		t.index[t.n], t.left[t.n], t.right[t.n] = int32(i), left, right
		if t.n++; t.n == batchMerges {
			begin(t)
			t = texts.Get().(*mergeTexts)
		}
	})
	begin(t)
	wait.Wait()
	n := 0
	for _, b := range all {
		if b.unknown != nil {
			r.err = nil // it was found further down
			r.enter(segment{index: b.at})
			r.fail("%v", b.unknown)
			r.leave()
			return
		}
		n += len(b.ids)
	}
	pairs, ids := make([]pair, 0, n), make([]int32, 0, n)
	for _, b := range all {
		pairs, ids = append(pairs, b.pairs...), append(ids, b.ids...)
	}
	m.merges.read = true
	m.merges.build(pairs, ids)
}

func (b *mergeBatch) lookUp(vocabulary map[string]int32) {
	t := b.texts
	b.pairs, b.ids = make([]pair, 0, t.n), make([]int32, 0, t.n)
	var joined []byte
	for i := range t.n {
		left, right := t.left[i], t.right[i]
		joined = append(append(joined[:0], left...), right...)
		var found [3]int32
		for k, token := range [][]byte{left, right, joined} {
			id, ok := vocabulary[string(token)]
			if !ok {
				b.unknown, b.at = fmt.Errorf("token %q is not in model.vocab", token), int(t.index[i])
				return
			}
			found[k] = id
		}
		b.pairs, b.ids = append(b.pairs, pair{found[0], found[1]}), append(b.ids, found[2])
	}
}

// merge reads one merge; ok is false for the version line that old files begin with, and after an error.
func (r *reader) merge() (left, right []byte, ok bool) {
	if r.next() == '"' {
		line := r.text()
		if strings.HasPrefix(string(line), "#version") {
			return nil, nil, false
		}
		left, right, ok = bytes.Cut(line, []byte(" "))
		if !ok || bytes.IndexByte(right, ' ') >= 0 {
			r.fail("want two tokens with a space between, found %q", line)
		}
		return left, right, r.err == nil
	}
	n := 0
	r.array(func(i int) {
		n++
		switch i {
		case 0:
			left = r.text()
		case 1:
			right = r.text()
		default:
			r.skip()
		}
	})
	if n != 2 {
		r.fail("want two tokens, found %d", n)
	}
	return left, right, r.err == nil
}
