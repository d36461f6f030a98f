package tokenizer

import (
	"bytes"
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
	merge
	used bool
}

// build fills the table with merges in their order of priority. Of a pair that is there twice, the last one counts.
func (t *mergeTable) build(pairs []pair, ids []int32) {
	t.shift = 63 - bits.Len(uint(len(pairs)))
	t.slots = make([]mergeSlot, 1<<(64-t.shift))
	for rank, p := range pairs {
		*t.slot(p) = mergeSlot{p, merge{int32(rank), ids[rank]}, true}
	}
}

// slot is the pair's, or the free one that it may have.
func (t *mergeTable) slot(p pair) *mergeSlot {
	const golden = 0x9e3779b97f4a7c15 // 2⁶⁴ over the golden ratio (Knuth, volume 3, 6.4)
	for i := (uint64(uint32(p.left))<<32 | uint64(uint32(p.right))) * golden >> t.shift; ; i++ {
		if s := &t.slots[i&uint64(len(t.slots)-1)]; !s.used || s.pair == p {
			return s
		}
	}
}

func (t *mergeTable) find(p pair) (merge, bool) {
	s := t.slot(p)
	return s.merge, s.used
}

// A mergeBatch is some merges in a row. Their tokens are looked up while the next ones are read.
type mergeBatch struct {
	index       []int // in the file's array
	left, right [][]byte
	pairs       []pair
	ids         []int32
	unknown     []byte // the first token that the vocabulary lacks; it is in merge len(ids)
}

const batchMerges = 8192

// merges reads the merges, each "left right" or ["left", "right"], the most important first.
func (r *reader) merges(m *model) {
	var all []*mergeBatch
	var wait sync.WaitGroup
	begin := func(b *mergeBatch) { wait.Go(func() { b.lookUp(m.ids) }) }
	r.array(func(i int) {
		left, right, ok := r.merge()
		if !ok {
			return
		}
		n := len(all)
		if n == 0 || len(all[n-1].index) == batchMerges {
			if n > 0 {
				begin(all[n-1])
			}
			all = append(all, &mergeBatch{})
			n++
		}
		b := all[n-1]
		b.index, b.left, b.right = append(b.index, i), append(b.left, left), append(b.right, right)
	})
	if n := len(all); n > 0 {
		begin(all[n-1])
	}
	wait.Wait()
	var pairs []pair
	var ids []int32
	for _, b := range all {
		if b.unknown != nil {
			r.err = nil // it was found further down
			r.enter(segment{index: b.index[len(b.ids)]})
			r.fail("token %q is not in model.vocab", b.unknown)
			r.leave()
			return
		}
		pairs, ids = append(pairs, b.pairs...), append(ids, b.ids...)
	}
	m.merges.read = true
	m.merges.build(pairs, ids)
}

func (b *mergeBatch) lookUp(vocabulary map[string]int32) {
	b.pairs, b.ids = make([]pair, 0, len(b.index)), make([]int32, 0, len(b.index))
	var joined []byte
	for i, left := range b.left {
		right := b.right[i]
		joined = append(append(joined[:0], left...), right...)
		var found [3]int32
		for k, token := range [][]byte{left, right, joined} {
			id, ok := vocabulary[string(token)]
			if !ok {
				b.unknown = bytes.Clone(token)
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
