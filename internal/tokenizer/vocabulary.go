package tokenizer

import (
	"hash/maphash"
	"math/bits"
	"slices"
	"strings"
)

// A vocabulary is the model's tokens with their ids. A quarter of a million of them are read with every run, so they lie flat: none has
// memory of its own. A token's place is its rank among the ids.
type vocabulary struct {
	text  string   // the tokens, one behind the other
	ends  []uint32 // by place: where the token ends in text; it begins where the one before it ends
	ids   []int32  // by place, ascending
	slots []int32  // places plus one, 0 where there is none, by the token's hash: open addressing, at most half full
	seed  maphash.Seed
}

// token is the one at a place.
func (v *vocabulary) token(place int) string {
	start := uint32(0)
	if place > 0 {
		start = v.ends[place-1]
	}
	return v.text[start:v.ends[place]]
}

// byID is the token that has an id.
func (v *vocabulary) byID(id int32) (string, bool) {
	place := int(id)
	if place >= len(v.ids) || v.ids[place] != id { // some id below it is missing
		var ok bool
		if place, ok = slices.BinarySearch(v.ids, id); !ok {
			return "", false
		}
	}
	return v.token(place), true
}

// id is that of a token.
func (v *vocabulary) id(token string) (int32, bool) {
	if place, ok := v.place(token); ok {
		return v.ids[place], true
	}
	return -1, false
}

// place is where a token is.
func (v *vocabulary) place(token string) (place int, ok bool) {
	place = int(*v.slot(token)) - 1
	return place, place >= 0
}

// slot is that of a token, or the free one that it would have.
func (v *vocabulary) slot(token string) *int32 {
	mask := uint64(len(v.slots) - 1)
	for i := maphash.String(v.seed, token); ; i++ {
		if s := &v.slots[i&mask]; *s == 0 || v.token(int(*s-1)) == token {
			return s
		}
	}
}

// vocabulary reads the tokens, {token: id, …}.
func (r *reader) vocabulary() *vocabulary {
	v := &vocabulary{seed: maphash.MakeSeed()}
	n := len(r.data) / 64 // of the usual files' bytes, a token takes at least so many, and each byte of its text eight
	v.ids, v.ends = make([]int32, 0, n), make([]uint32, 0, n)
	var text strings.Builder
	text.Grow(len(r.data) / 8)
	r.object(func(token string) {
		text.WriteString(token)
		v.ends = append(v.ends, uint32(text.Len()))
		v.ids = append(v.ids, r.int())
	})
	v.text = text.String()
	if r.err == nil {
		v.sort()
		v.index(r)
	}
	return v
}

// sort brings the tokens into the order of their ids, which is the usual one.
func (v *vocabulary) sort() {
	if slices.IsSorted(v.ids) {
		return
	}
	order := make([]int, len(v.ids))
	for place := range order {
		order[place] = place
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(v.ids[a]) - int(v.ids[b]) })
	sorted := vocabulary{seed: v.seed}
	var text strings.Builder
	text.Grow(len(v.text))
	for _, was := range order {
		text.WriteString(v.token(was))
		sorted.ends = append(sorted.ends, uint32(text.Len()))
		sorted.ids = append(sorted.ids, v.ids[was])
	}
	sorted.text = text.String()
	*v = sorted
}

// index fills the hash table. No token and no id may be there twice.
func (v *vocabulary) index(r *reader) {
	v.slots = make([]int32, 1<<bits.Len(uint(max(1, 2*len(v.ids))-1)))
	for place, id := range v.ids {
		token := v.token(place)
		s := v.slot(token)
		if place > 0 && v.ids[place-1] == id {
			r.failIn(token, "id %d belongs to %q already", id, v.token(place-1))
			return
		}
		if *s > 0 {
			r.failIn(token, "has id %d, but id %d already", id, v.ids[*s-1])
			return
		}
		*s = int32(place) + 1
	}
}
