package engine

import "fmt"

// Cost is what an op cannot do without in one pass, whatever the backend.
type Cost struct {
	Weights      int // bytes of weights, biases and tables that it reads; of the embedding, the rows that it gathers
	Cache        int // bytes of the KV cache that it reads
	MultiplyAdds int // with weights
}

// Plus adds up what two ops cost.
func (c Cost) Plus(d Cost) Cost {
	return Cost{c.Weights + d.Weights, c.Cache + d.Cache, c.MultiplyAdds + d.MultiplyAdds}
}

// Costs gives the cost of each op of the Program in pass p, from the operands that the op names: what no op of the program writes is weights.
func (s *Session) Costs(p Pass) []Cost {
	defer func(present Pass) { *s.pass = present }(*s.pass)
	*s.pass = p
	ops := s.Program()
	cached, made := map[Buffer]bool{}, map[Buffer]bool{s.ids: true}
	for _, op := range ops {
		written := made
		if _, ok := op.(*KVWrite); ok {
			written = cached
		}
		out, _ := op.Operands(nil, nil)
		for _, o := range out {
			written[o.Buffer] = true
		}
	}
	costs := make([]Cost, len(ops))
	for i, op := range ops {
		_, in := op.Operands(nil, nil)
		for _, o := range in {
			if _, ok := op.(*Embed); ok {
				o = gathered(o, p.Rows)
			}
			switch bytes := o.Rows * o.Cols * o.Buffer.DType().Size(); {
			case cached[o.Buffer]:
				costs[i].Cache += bytes
			case !made[o.Buffer]:
				costs[i].Weights += bytes
			}
		}
		if l, ok := op.(*Linear); ok {
			costs[i].MultiplyAdds = p.Rows * l.W.Rows * l.W.Cols
		}
	}
	return costs
}

// gathered is the part of an embedding's operand that so many tokens need.
func gathered(o Operand, tokens int) Operand {
	switch o.Name {
	case "w":
		o.Rows = tokens
	case "scale":
		o.Cols = tokens
	}
	return o
}

// Repeat fills the cache up to position n with the keys and values of the tokens that the session has seen, over and over. It is for
// measurements at long contexts: what an op costs does not depend on what the cache holds, but memory that nobody has written may be no
// memory yet. What is decoded from it is no text.
func (s *Session) Repeat(n int) error {
	if s.pos < 1 || n > s.capacity {
		return fmt.Errorf("repeat %d tokens up to %d: the session has room for %d", s.pos, n, s.capacity)
	}
	for _, op := range s.body {
		w, ok := op.(*KVWrite)
		if !ok {
			continue
		}
		for _, cache := range []Buffer{w.KCache, w.VCache} {
			host, err := cache.Host()
			if err != nil {
				return err
			}
			row := w.Width * cache.DType().Size()
			for done := s.pos * row; done < n*row; {
				done += copy(host[done:n*row], host[:s.pos*row])
			}
		}
	}
	return nil
}

// Seek lets the next Step feed the token at position pos, whose predecessors are in the cache: tokens fed before, or what Repeat wrote.
func (s *Session) Seek(pos int) error {
	if pos < 0 || pos >= s.capacity {
		return fmt.Errorf("seek position %d: the session has room for %d tokens", pos, s.capacity)
	}
	s.pos, s.step = pos, 1
	return s.growTables(pos)
}
