package parity

import (
	"fmt"
	"math"

	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
	"llmrun/internal/num"
	"llmrun/internal/shadow"
)

// followed is a side under watch, down to the token that it chooses.
type followed struct {
	*side
	watch    *shadow.Watch
	end      engine.Op // the last op of the program, whose output is the logits
	written  []byte    // that output, right after it was written
	sampled  []shadow.Finding
	restored func(engine.Op)
}

// follow puts a side that was reset under watch. text is what it is to be fed, token by token; twin is the session on the file.
func follow(s, twin *side, text []int) *followed {
	program := s.Program()
	f := &followed{side: s, end: program[len(program)-1]}
	f.watch = shadow.Follow(s.Session, twin.Session)
	f.watch.Text = text
	f.restored = s.Tap
	s.Tap = func(op engine.Op) {
		f.restored(op)
		if op == f.end {
			f.keep(op)
		}
	}
	return f
}

// keep copies what the last op wrote.
func (f *followed) keep(op engine.Op) {
	outs, _ := op.Operands(nil, nil)
	o := outs[0]
	host, err := o.Buffer.Host()
	if err != nil {
		return // the step fails, too
	}
	size := o.Buffer.DType().Size()
	f.written = append(f.written[:0], host[o.Offset*size:(o.Offset+o.Cols)*size]...)
}

// stop ends the watch.
func (f *followed) stop() {
	f.Tap = f.restored
	f.watch.Stop()
}

// sample holds the side's last act of a step to what came before: the logits that it reports must be, to the last bit, those that its last op
// wrote, and the token that it chooses the highest of them, among equals the one with the lowest id.
func (f *followed) sample(step int, reported []float32) {
	outs, _ := f.end.Operands(nil, nil)
	wrote := make([]float32, len(reported))
	num.Float32s(wrote, outs[0].Buffer.DType(), f.written)
	finding := shadow.Finding{Step: step, Layer: engine.NoLayer, Site: "sample", Family: string(engine.FamilySample), Op: "greedy",
		Elements: len(wrote), Ratio: ctconv.Number(math.Inf(1))}
	for id, v := range wrote {
		if math.Float32bits(v) == math.Float32bits(reported[id]) {
			continue
		}
		if finding.Bad++; finding.Bad == 1 {
			finding.Worst = shadow.Worst{Col: id, Want: ctconv.Number(v), Got: ctconv.Number(reported[id]), Error: ctconv.Number(float64(reported[id]) - float64(v))}
		}
	}
	if finding.Bad > 0 {
		finding.NonFinite = engine.CountNonFinite(reported)
		finding.Operand, finding.Between = "logits", &shadow.Between{Writer: f.end.Site().String(), Reader: fmt.Sprintf("step %d sample", step)}
		finding.Why = []string{fmt.Sprintf("%d of the logits that were reported are not those that %s wrote", finding.Bad, f.end.Site().Name)}
		f.sampled = append(f.sampled, finding)
		return
	}
	f.choose(finding, wrote)
}

// choose holds the token to the logits.
func (f *followed) choose(finding shadow.Finding, logits []float32) {
	bad := engine.CountNonFinite(logits)
	if bad > 0 && f.own.Choose == nil {
		return // a side without a mistake of its own stops here
	}
	want, got := engine.Greedy(logits), f.own.choose(logits)
	if bad == 0 && got == want {
		return
	}
	finding.Operand, finding.Bad, finding.Elements, finding.NonFinite = "id", 1, 1, bad
	finding.Worst = shadow.Worst{Want: ctconv.Number(want), Got: ctconv.Number(got), Error: ctconv.Number(got - want)}
	why := fmt.Sprintf("id %d was chosen; the highest logit, %.6g, has id %d", got, logits[want], want)
	switch {
	case bad > 0:
		finding.Worst.Want = ctconv.Number(NoToken)
		why = fmt.Sprintf("id %d was chosen from logits of which %d are NaN or infinite: they must never become a token", got, bad)
	case got >= 0 && got < len(logits) && logits[got] == logits[want]:
		why = fmt.Sprintf("ids %d and %d have the same highest logit, %.6g: the lowest id wins, not id %d", want, got, logits[want], got)
	}
	finding.Why = []string{why}
	f.sampled = append(f.sampled, finding)
}

// findings lists all births of the side in order: by step, what was sampled after what the ops did.
func (f *followed) findings() []shadow.Finding {
	var list []shadow.Finding
	sampled := f.sampled
	for _, x := range f.watch.Findings() {
		for len(sampled) > 0 && sampled[0].Step < x.Step {
			list, sampled = append(list, sampled[0]), sampled[1:]
		}
		list = append(list, x)
	}
	return append(list, sampled...)
}

// text is the tokens of a prompt and of what was chosen after it.
func text(prompt, chosen []int) []int { return append(append([]int{}, prompt...), chosen...) }
