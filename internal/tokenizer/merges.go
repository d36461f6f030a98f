package tokenizer

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// A cut says which merge makes a token out of the two that it is cut into.
type cut struct {
	at   int32 // bytes of the left one
	rank int32 // of the merge, the lowest first
}

// A mergeTable has the cuts of every token. To find the merge of a pair, one looks for the token that is spelled like the two, and
// for the cut between them; so reading half a million merges, as is done with every run, takes no look for the pairs' own tokens.
type mergeTable struct {
	cuts   []cut   // by the token's place, then by rank
	starts []int32 // by place: where its cuts begin; and their end
}

// A merge is as the file lists it: the token that it makes, by its place, and where that is cut.
type merge struct{ place, at int32 }

// newMergeTable takes merges in their order of rank, of tokens places.
func newMergeTable(merges []merge, tokens int) mergeTable {
	t := mergeTable{make([]cut, len(merges)), make([]int32, tokens+1)}
	for _, m := range merges {
		t.starts[m.place]++
	}
	for place := range tokens {
		t.starts[place+1] += t.starts[place]
	}
	for rank, m := range slices.Backward(merges) { // starts are ends yet, and come down to what they are
		t.starts[m.place]--
		t.cuts[t.starts[m.place]] = cut{m.at, int32(rank)}
	}
	return t
}

// rank is that of the merge that makes the token at a place of two, the left one of which has so many bytes. If the file lists it
// twice, the last time counts.
func (t *mergeTable) rank(place int, left int32) (rank int32, ok bool) {
	for _, c := range slices.Backward(t.cuts[t.starts[place]:t.starts[place+1]]) {
		if c.at == left {
			return c.rank, true
		}
	}
	return 0, false
}

// A mergeReader reads a list of merges, each "left right" or ["left", "right"], from one of them on.
type mergeReader struct {
	*reader
	vocabulary *vocabulary
	list       []merge
	made       int // place of the token that the last merge made

	opening, between, closing gap // around the two tokens of a merge

	// Another one reads the list from byte ahead on, if that is where a merge begins, and closes done.
	rest  *mergeReader
	ahead int
	done  chan struct{}
}

// merges reads the merges, the most important first. There are half a million of them, so two read at once, each a half.
func (r *reader) merges(v *vocabulary) mergeTable {
	if !r.take('[') {
		r.want("an array")
		return mergeTable{}
	}
	quotes := 2 // of a merge
	if r.next() == '[' {
		quotes = 4
	}
	m := &mergeReader{reader: r, vocabulary: v, ahead: r.middle(), done: make(chan struct{})}
	half := strings.Count(r.data[m.ahead:], `"`) / quotes
	m.list = make([]merge, 0, half+strings.Count(r.data[r.pos:m.ahead], `"`)/quotes)
	m.rest = &mergeReader{reader: &reader{data: r.data, pos: m.ahead}, vocabulary: v, list: make([]merge, 0, half)}
	go func() {
		m.rest.read()
		close(m.done)
	}()
	m.read()
	<-m.done
	return newMergeTable(m.list, len(v.ids))
}

// middle is where, in the middle of what is left, a line begins with what stands here; if no line does, it is the end. No string goes
// on over the end of a line.
func (r *reader) middle() int {
	what := r.next()
	at := (r.pos + len(r.data)) / 2
	for {
		end := strings.IndexByte(r.data[at:], '\n')
		if end < 0 {
			return len(r.data)
		}
		line := strings.TrimLeft(r.data[at+end:], " \t\r\n")
		if at = len(r.data) - len(line); line != "" && line[0] == what {
			return at
		}
	}
}

// read reads the list to its end.
func (m *mergeReader) read() {
	var comma gap
	i := 0
	for more := m.separator(']', true); more; more = comma.step(m.reader, func() bool { return m.separator(']', false) }) {
		if m.next(); m.rest != nil && m.pos == m.ahead {
			if <-m.done; m.rest.err == nil { // else the error is found once more, by who knows the merge's place in the list
				m.list = append(m.list, m.rest.list...)
				m.pos = m.rest.pos
				return
			}
		}
		m.enter(segment{index: i})
		if left, right, ok := m.merge(); ok {
			m.add(left, right)
		}
		m.leave()
		i++
	}
}

// merge reads one merge; ok is false for the version line that old files begin with, and after an error.
func (m *mergeReader) merge() (left, right string, ok bool) {
	r := m.reader
	if r.next() == '"' {
		line := r.raw()
		if strings.HasPrefix(line, "#version") {
			return "", "", false
		}
		left, right, ok = strings.Cut(line, " ")
		if !ok || strings.IndexByte(right, ' ') >= 0 {
			r.fail("want two tokens with a space between, found %q", line)
		}
		return left, right, r.err == nil
	}
	start := r.pos
	if m.opening.step(r, func() bool { return r.take('[') }) {
		if left = r.raw(); m.between.step(r, func() bool { return r.take(',') }) {
			if right = r.raw(); m.closing.step(r, func() bool { return r.take(']') }) {
				return left, right, true
			}
		}
	}
	r.pos, r.err = start, nil // once more, to say what is wrong
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

// add appends a merge. Whether left and right are UTF-8 shows by what they make, which is, if the vocabulary has it.
func (m *mergeReader) add(left, right string) {
	place, ok := m.makes(left, right)
	switch {
	case !ok:
		m.fail("token %q is not in model.vocab", left+right)
	case right != "" && !utf8.RuneStart(right[0]):
		m.fail("%q and %q are not UTF-8", left, right)
	default:
		m.made = place
		m.list = append(m.list, merge{int32(place), int32(len(left))})
	}
}

// makes is the place of the token that is spelled like the two. Merges are usually listed in the order of what they make, so it is
// the same one again or the next.
func (m *mergeReader) makes(left, right string) (place int, ok bool) {
	v := m.vocabulary
	for place := m.made; place < min(m.made+2, len(v.ids)); place++ {
		if rest, ok := strings.CutPrefix(v.token(place), left); ok && rest == right {
			return place, true
		}
	}
	return v.place(left + right)
}
