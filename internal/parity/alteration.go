package parity

import (
	"slices"
	"strings"

	"llmrun/internal/engine"
)

// suspects are the groups of ops that people suspect first.
var suspects = []struct {
	name     string
	families []engine.Family
}{
	{"matrix products", []engine.Family{engine.FamilyLinear, engine.FamilyLMHead}},
	{"norms", []engine.Family{engine.FamilyNorm}},
	{"rope", []engine.Family{engine.FamilyRoPE}},
	{"attention", []engine.Family{engine.FamilyScores, engine.FamilySoftmax, engine.FamilyContext}},
	{"kv", []engine.Family{engine.FamilyKV}},
	{"act", []engine.Family{engine.FamilyActivation}},
	{"residual", []engine.Family{engine.FamilyResidual}},
	{"embed", []engine.Family{engine.FamilyEmbed}},
}

// familyName is what a family is called in a substitution's name: that of its group, if it has one to itself.
func familyName(f engine.Family) string {
	for _, s := range suspects {
		if len(s.families) == 1 && s.families[0] == f {
			return s.name
		}
	}
	return string(f)
}

// alteration is a way to decode again.
type alteration struct {
	Substitution
	culprit bool // expected to heal
	wider   bool // more than the guilty, and tried if they alone do not heal: one kernel serves linear and lm_head
	backend func(s, other *side) engine.Backend
	own     func(*Side)
}

// alterations lists what is tried: first what should heal, then what should not.
func (r *run) alterations(c *Culprit, other *side, mirrors map[engine.Buffer]engine.Buffer) (list []alteration) {
	move := func(name string, culprit bool, families ...engine.Family) {
		a := alteration{culprit: culprit, backend: func(s, other *side) engine.Backend {
			return moveOps(s, other, mirrors, func(op engine.Op) bool { return slices.Contains(families, op.Family()) })
		}}
		a.Name = name + " → " + other.backend.Name()
		for _, f := range families {
			a.Families = append(a.Families, string(f))
		}
		list = append(list, a)
	}
	own := func(name string, change func(*Side)) {
		a := alteration{culprit: true, own: change}
		a.Name, a.Families = name, []string{}
		list = append(list, a)
	}
	if len(r.Families) > 0 {
		for _, f := range r.Families {
			move(familyName(f), string(f) == c.Family, f)
		}
		return list
	}
	guilty := r.guilty(c)
	for _, f := range guilty {
		move(familyName(f), true, f)
	}
	if readers := r.readers(c); len(readers) > 1 {
		names := []string{}
		for _, f := range readers {
			names = append(names, familyName(f))
		}
		move(strings.Join(names, ", "), true, readers...)
	}
	switch {
	case c.Site == "sample":
		own("greedy sampler", func(s *Side) { s.Choose = nil })
	case c.Between != nil && c.Between.Writer == "the prompt":
		own("the prompt as it is", func(s *Side) { s.Prompt = nil })
	case c.Between != nil && c.Op == "reset":
		own("an empty cache", func(s *Side) { s.Reset = nil })
	}
	for _, s := range suspects {
		within := 0
		for _, f := range s.families {
			if slices.Contains(guilty, f) {
				within++
			}
		}
		if within < len(s.families) {
			move(s.name, within > 0, s.families...)
			list[len(list)-1].wider = within > 0
		}
	}
	for _, wait := range []struct {
		name    string
		backend func(s, other *side) engine.Backend
	}{
		{"sync after every op", func(s, _ *side) engine.Backend { return synced{s.backend} }},
		{"outputs zeroed first", func(s, _ *side) engine.Backend { return zeroed{s.backend} }},
	} {
		list = append(list, alteration{Substitution: Substitution{Name: wait.name, Families: []string{}}, backend: wait.backend})
	}
	return list
}

// guilty is the families whose move should heal: the culprit's; and if bytes changed on their way, their writer's and their reader's.
func (r *run) guilty(c *Culprit) (list []engine.Family) {
	add := func(f engine.Family) {
		if f != engine.FamilySample && f != "" && !slices.Contains(list, f) {
			list = append(list, f)
		}
	}
	add(engine.Family(c.Family))
	for _, f := range r.readers(c) {
		add(f)
	}
	if c.Between != nil {
		for _, end := range []string{c.Between.Writer, c.Between.Reader} {
			for _, op := range r.candidate.Program() {
				if words := strings.Fields(end); len(words) > 0 && words[len(words)-1] == op.Site().Name {
					add(op.Family())
				}
			}
		}
	}
	return list
}

// readers is the families of the ops that read the bytes that are not the file's: an embedding may be the projection, too.
func (r *run) readers(c *Culprit) (list []engine.Family) {
	if c.Between == nil || c.Between.Writer != "the file" {
		return nil
	}
	s := r.candidate
	if c.Side == referenceSide {
		s = r.reference
	}
	var wrong engine.Buffer
	reads := func(op engine.Op, is func(engine.Operand) bool) bool {
		_, ins := op.Operands(nil, nil)
		return slices.ContainsFunc(ins, is)
	}
	for _, op := range s.Program() {
		if at := op.Site(); at.Layer == c.Layer && at.Name == c.Site {
			reads(op, func(o engine.Operand) bool {
				if o.Name == c.Operand {
					wrong = o.Buffer
				}
				return wrong != nil
			})
		}
	}
	for _, op := range s.Program() {
		if wrong != nil && !slices.Contains(list, op.Family()) && reads(op, func(o engine.Operand) bool { return o.Buffer == wrong }) {
			list = append(list, op.Family())
		}
	}
	return list
}
