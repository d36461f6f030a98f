package fault

import (
	"fmt"
	"slices"
	"strings"

	"llmrun/internal/engine"
)

// Want is what a comparison must say of a fault.
type Want struct {
	Verdict     string
	Side        string // "": the candidate
	Step, Layer int    // Any where the mistake does not decide it
	Site        string // "": no culprit
	Family      string // of the op
	Between     Between
	Heals       string // the family whose move to the other side heals, or several with + between; "": none need to
	Why         string // part of the reason, where the numbers prove one; "": none need be given
}

// Between is bytes that changed on their way; Site is then the op that was run meanwhile, or the reader, if none was. The zero Between says
// that the op's arithmetic is wrong.
type Between struct{ Writer, Reader string } // sites, "the file", "the prompt" or "nobody"

// What heals where one kernel serves two families, or one mistake reaches over several.
const (
	matrixProducts = "linear+lm_head"
	attentionOps   = "scores+softmax+context"
)

// Any step, or any layer.
const Any = -2

const diverged, inconclusive = "DIVERGED", "INCONCLUSIVE"

// born is an error whose first op is wrong by itself, and right on the other backend.
func born(step, layer int, site string, family engine.Family) Want {
	return Want{Verdict: diverged, Step: step, Layer: layer, Site: site, Family: string(family), Heals: string(family)}
}

// changed is bytes that are not what writer left when reader reads them, because of an op.
func changed(step, layer int, site string, family engine.Family, writer, reader string) Want {
	w := born(step, layer, site, family)
	w.Between = Between{writer, reader}
	return w
}

// misloaded is a weight that is not what the file holds. The other side has it right, so that moving the op there heals.
func misloaded(layer int, site string, family engine.Family) Want {
	return changed(0, layer, site, family, "the file", site)
}

// healedBy is the same with another family, or several, that heal; none need to if it is "".
func (w Want) healedBy(families string) Want {
	w.Heals = families
	return w
}

// because asks for a reason that has these words.
func (w Want) because(words string) Want {
	w.Why = words
	return w
}

// String is where the fault must be seen.
func (w Want) String() string {
	if w.Site == "" {
		return w.Verdict
	}
	s := w.Verdict
	if w.Side != "" {
		s += " of the " + w.Side
	}
	if w.Step != Any {
		s += fmt.Sprintf(", step %d", w.Step)
	}
	switch w.Layer {
	case Any, engine.NoLayer:
	default:
		s += fmt.Sprintf(" layer %d", w.Layer)
	}
	s += " " + w.Site
	if w.Between != (Between{}) {
		s += fmt.Sprintf(", between %s and %s", w.Between.Writer, w.Between.Reader)
	}
	if w.Heals != "" {
		s += ", healed by " + w.Heals
	}
	if w.Why != "" {
		s += fmt.Sprintf(", because %q", w.Why)
	}
	return s
}

// Said is what a comparison said: the part of its JSON that a Want is about.
type Said struct {
	Verdict string
	Exit    int
	Culprit *struct {
		Side        string
		Step, Layer int
		Site        string
		Family      string
		Between     *struct{ Writer, Reader string }
		Confirmed   bool
		Why         []string
	}
	Substitution []struct {
		Families []string
		Heals    bool
	}
}

// Reason is what was said to be proved, or nothing.
func (s Said) Reason() string {
	if s.Culprit == nil {
		return ""
	}
	return strings.Join(s.Culprit.Why, "; ")
}

// want is what was said, as a Want.
func (s Said) want() Want {
	w := Want{Verdict: s.Verdict}
	c := s.Culprit
	if c == nil {
		return w
	}
	w.Step, w.Layer, w.Site, w.Family = c.Step, c.Layer, c.Site, c.Family
	if c.Side != "candidate" {
		w.Side = c.Side
	}
	if c.Between != nil {
		w.Between = Between{lastSite(c.Between.Writer), lastSite(c.Between.Reader)}
	}
	for _, x := range s.Substitution {
		if x.Heals && len(x.Families) > 0 {
			w.Heals = strings.Trim(w.Heals+" "+strings.Join(x.Families, "+"), " ")
		}
	}
	return w
}

// String is what was said, in the words of Want's String.
func (s Said) String() string { return s.want().String() }

// lastSite is the site's name of "step 2 layer 4 act"; anything else stays.
func lastSite(s string) string {
	if words := strings.Fields(s); words[0] == "step" {
		return words[len(words)-1]
	}
	return s
}

// Named tells whether what was said is what had to be said.
func (w Want) Named(s Said) bool {
	is := s.want()
	if w.Heals != "" && !slices.Contains(strings.Fields(is.Heals), w.Heals) {
		return false
	}
	if w.Step == Any {
		is.Step = Any
	}
	if w.Layer == Any {
		is.Layer = Any
	}
	is.Heals, is.Why = w.Heals, w.Why
	return is == w && strings.Contains(s.Reason(), w.Why)
}
