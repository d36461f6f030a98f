package tokenizer

import (
	"fmt"
	"unicode/utf8"
)

// A model is a byte-pair encoding (arXiv:1508.07909): a vocabulary and the merges, in order of priority,
// that build its longer tokens out of characters.
type model struct {
	vocabulary *vocabulary
	merges     mergeTable

	unk          int32 // what an unknown character becomes; -1: it vanishes
	unkText      string
	fuseUnk      bool // neighbouring unknown characters become one unk
	byteFallback bool // an unknown character becomes the tokens <0xNN> of its UTF-8 bytes
	ignoreMerges bool // a word that is a token as a whole is that token
	byteTokens   [256]int32
}

func (m *model) setUnknown(token *string) {
	if token == nil {
		return
	}
	m.unkText = *token
	if id, ok := m.vocabulary.id(*token); ok {
		m.unk = id
	}
}

func (m *model) setByteTokens() {
	for b := range m.byteTokens {
		m.byteTokens[b], _ = m.vocabulary.id(fmt.Sprintf("<0x%02X>", b))
	}
}

// A symbol is a token in the making. The symbols of a word form a list linked by index; a symbol that has been
// merged into its left neighbour is dead.
type symbol struct {
	id         int32
	start, end int32 // of its token, in the merger's spelled
	prev, next int32 // -1 at the ends
	dead       bool
}

// A candidate says that the symbol at position and its right neighbour could become token id. It is stale
// if, when its turn comes, the symbol is dead or its neighbour ends elsewhere.
type candidate struct {
	key uint64 // rank<<32 | position: lower rank first, then further left
	id  int32
	end int32
}

// A merger encodes words, one after the other, into ids; its other fields are scratch.
type merger struct {
	*model
	ids     []int32
	symbols []symbol
	spelled []byte // the tokens that the symbols began as: the word itself, if its characters are tokens
	text    string // spelled
	queue   candidates
}

// word appends the tokens of one pre-tokenized word. The queue makes it n·log n in the word's length, which
// matters: for Gemma a whole text is one word.
func (m *merger) word(w string) {
	if m.ignoreMerges {
		if id, ok := m.vocabulary.id(w); ok {
			m.ids = append(m.ids, id)
			return
		}
	}
	m.split(w)
	m.text = string(m.spelled)
	for i := range m.symbols {
		m.symbols[i].prev = int32(i - 1)
		m.symbols[i].next = int32(i + 1)
	}
	if n := len(m.symbols); n > 0 {
		m.symbols[n-1].next = -1
	}
	for i := range m.symbols {
		m.propose(int32(i))
	}
	for len(m.queue) > 0 {
		m.apply(m.queue.pop())
	}
	for i := range m.symbols {
		if !m.symbols[i].dead {
			m.ids = append(m.ids, m.symbols[i].id)
		}
	}
}

// split fills symbols with the characters of w. A run of unknown characters is written down only when a
// known one follows: so does the library that these files come from, and with byte fallback it shows.
func (m *merger) split(w string) {
	m.symbols, m.spelled = m.symbols[:0], m.spelled[:0]
	unknown := false
	for i, n := 0, 0; i < len(w); i += n {
		_, n = utf8.DecodeRuneInString(w[i:])
		id, ok := m.vocabulary.id(w[i : i+n])
		switch {
		case ok:
			if unknown {
				m.add(m.unk)
				unknown = false
			}
			m.add(id)
		case m.byteFallback && m.fallback(w[i:i+n]):
		case m.unk >= 0:
			if unknown && !m.fuseUnk {
				m.add(m.unk)
			}
			unknown = true
		}
	}
	if unknown {
		m.add(m.unk)
	}
}

// add appends the symbol of a token.
func (m *merger) add(id int32) {
	token, ok := m.vocabulary.byID(id)
	if !ok { // an unk that is an added token, which no merge knows
		token = "\xff" // nor does any token hold
	}
	start := len(m.spelled)
	m.spelled = append(m.spelled, token...)
	m.symbols = append(m.symbols, symbol{id: id, start: int32(start), end: int32(len(m.spelled))})
}

// fallback appends the byte tokens of one character, if the vocabulary has them all.
func (m *merger) fallback(char string) bool {
	for _, b := range []byte(char) {
		if m.byteTokens[b] < 0 {
			return false
		}
	}
	for _, b := range []byte(char) {
		m.add(m.byteTokens[b])
	}
	return true
}

// propose queues the merge of the symbol at i with its right neighbour, if there is one.
func (m *merger) propose(i int32) {
	s := m.symbols[i]
	if s.next < 0 {
		return
	}
	right := m.symbols[s.next]
	place, ok := m.vocabulary.place(m.text[s.start:right.end])
	if !ok {
		return
	}
	if rank, ok := m.merges.rank(place, s.end-s.start); ok {
		m.queue.push(candidate{key: uint64(rank)<<32 | uint64(i), id: m.vocabulary.ids[place], end: right.end})
	}
}

func (m *merger) apply(c candidate) {
	i := int32(uint32(c.key))
	s := &m.symbols[i]
	if s.dead || s.next < 0 || m.symbols[s.next].end != c.end {
		return
	}
	right := &m.symbols[s.next]
	s.id, s.end, s.next = c.id, c.end, right.next
	right.dead = true
	if s.next >= 0 {
		m.symbols[s.next].prev = i
	}
	m.propose(i)
	if s.prev >= 0 {
		m.propose(s.prev)
	}
}

// candidates is a binary heap, the smallest key at the root.
type candidates []candidate

func (h *candidates) push(c candidate) {
	a := append(*h, c)
	i := len(a) - 1
	for i > 0 && c.key < a[(i-1)/2].key {
		a[i] = a[(i-1)/2]
		i = (i - 1) / 2
	}
	a[i] = c
	*h = a
}

func (h *candidates) pop() candidate {
	a := *h
	top, last := a[0], a[len(a)-1]
	a = a[:len(a)-1]
	*h = a
	if len(a) == 0 {
		return top
	}
	i := 0
	for {
		child := 2*i + 1
		if child+1 < len(a) && a[child+1].key < a[child].key {
			child++
		}
		if child >= len(a) || last.key <= a[child].key {
			break
		}
		a[i] = a[child]
		i = child
	}
	a[i] = last
	return top
}
