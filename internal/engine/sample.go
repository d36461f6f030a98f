package engine

import (
	"math"
	"math/rand/v2"

	"llmrun/internal/num"
)

// Greedy is the id of the highest logit; among equals, the lowest id. The logits must be finite: see CountNonFinite.
func Greedy(logits []float32) int {
	best, most := 0, logits[0]
	for id := 0; id < len(logits); id++ {
		if id+8 <= len(logits) { // few of a long vocabulary are larger than all before
			x := (*[8]float32)(logits[id:])
			if !(x[0] > most || x[1] > most || x[2] > most || x[3] > most || x[4] > most || x[5] > most || x[6] > most || x[7] > most) {
				id += 7
				continue
			}
		}
		if logits[id] > most {
			best, most = id, logits[id]
		}
	}
	return best
}

// CountNonFinite counts NaN and infinities: what is not 0 when it is taken from itself.
func CountNonFinite(x []float32) (n int) {
	for len(x) > 0 {
		if len(x) >= 8 { // none, as a rule
			v := (*[8]float32)(x)
			if (v[0]-v[0])+(v[1]-v[1])+(v[2]-v[2])+(v[3]-v[3])+(v[4]-v[4])+(v[5]-v[5])+(v[6]-v[6])+(v[7]-v[7]) == 0 {
				x = x[8:]
				continue
			}
		}
		if nonFinite(x[0]) {
			n++
		}
		x = x[1:]
	}
	return n
}

func nonFinite(v float32) bool { return math.Float32bits(v)&0x7f800000 == 0x7f800000 }

// Sampler draws a token. The same seed gives the same draws on every machine.
type Sampler struct {
	Temperature float64 // 0: Greedy
	TopK        int     // keep so many; 0: all
	TopP        float64 // then keep the most probable until their sum reaches this; 0 or 1: all
	Rand        *rand.Rand
	order       order // memory
}

// NewSampler seeds a sampler.
func NewSampler(temperature float64, topK int, topP float64, seed uint64) *Sampler {
	return &Sampler{Temperature: temperature, TopK: topK, TopP: topP, Rand: rand.New(rand.NewPCG(seed, 0))}
}

// Sample follows CTranslate2's order: the top k, divided by the temperature, softmax, the top p of it, one draw. The draw goes from the most
// probable token down.
func (s *Sampler) Sample(logits []float32) int {
	if s.Temperature == 0 || s.TopK == 1 {
		return Greedy(logits)
	}
	o := &s.order
	o.begin(logits, s.Temperature)
	top, n, sum := o.at(0).x, len(logits), 0.0
	weight := func(c candidate) float64 { return num.Exp(c.x - top) }
	if s.TopK > 0 && s.TopK < n {
		n = s.TopK
		for i := range n {
			sum += weight(o.at(i))
		}
	} else {
		for _, c := range o.all {
			sum += weight(c)
		}
	}
	if s.TopP > 0 && s.TopP < 1 {
		kept, reached := 0, 0.0
		for ; kept < n && reached < s.TopP*sum; kept++ {
			reached += weight(o.at(kept))
		}
		n, sum = kept, reached
	}
	draw := s.Rand.Float64() * sum
	for i := range n {
		if draw -= weight(o.at(i)); draw < 0 {
			return o.at(i).id
		}
	}
	return o.at(n - 1).id
}

// candidate is a token and its logit over the temperature.
type candidate struct {
	id int
	x  float64
}

func (c candidate) before(d candidate) bool { return c.x > d.x || c.x == d.x && c.id < d.id }

// order sorts candidates as far as it is asked to: a heap whose first elements, taken away one by one, lie behind it, the last one first.
type order struct {
	all  []candidate
	heap int // elements of all that are not taken away
}

func (o *order) begin(logits []float32, temperature float64) {
	o.all = o.all[:0]
	for id, x := range logits {
		o.all = append(o.all, candidate{id, float64(x) / temperature})
	}
	o.heap = len(o.all)
	for i := o.heap/2 - 1; i >= 0; i-- {
		o.sink(i)
	}
}

// at is candidate i of the order.
func (o *order) at(i int) candidate {
	for len(o.all)-o.heap <= i {
		o.heap--
		o.all[0], o.all[o.heap] = o.all[o.heap], o.all[0]
		o.sink(0)
	}
	return o.all[len(o.all)-1-i]
}

// sink moves element i down to where it belongs.
func (o *order) sink(i int) {
	heap := o.all[:o.heap]
	for {
		child := 2*i + 1
		if child+1 < len(heap) && heap[child+1].before(heap[child]) {
			child++
		}
		if child >= len(heap) || !heap[child].before(heap[i]) {
			return
		}
		heap[i], heap[child] = heap[child], heap[i]
		i = child
	}
}
