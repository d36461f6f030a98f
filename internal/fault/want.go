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
	Family      string // of the op whose arithmetic is wrong; "" with Between
	Between     bool   // the bytes changed on their way to Site
	Heals       string // the family whose move to the other side heals; "": none need to
}

// Any step, or any layer.
const Any = -2

const diverged, inconclusive = "DIVERGED", "INCONCLUSIVE"

// born is an error whose first op is wrong by itself, and right on the other backend.
func born(step, layer int, site string, family engine.Family) Want {
	return Want{Verdict: diverged, Step: step, Layer: layer, Site: site, Family: string(family), Heals: string(family)}
}

// between is bytes that changed before they were read at a site.
func between(step, layer int, reader string) Want {
	return Want{Verdict: diverged, Step: step, Layer: layer, Site: reader, Between: true}
}

// unhealed is the same where no single family heals: the mistake reaches over several, or lies in memory that all share.
func (w Want) unhealed() Want {
	w.Heals = ""
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
	if w.Between {
		s += " before " + w.Site
	} else {
		s += " " + w.Site
	}
	if w.Heals != "" {
		s += ", healed by " + w.Heals
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
	}
	Substitution []struct {
		Families []string
		Heals    bool
	}
	Why string
}

// String is what was said, in the words of Want's String.
func (s Said) String() string {
	c := s.Culprit
	if c == nil {
		return s.Verdict
	}
	w := Want{Verdict: s.Verdict, Step: c.Step, Layer: c.Layer, Site: c.Site, Between: c.Between != nil, Heals: strings.Join(s.heals(), ", ")}
	if c.Side != "candidate" {
		w.Side = c.Side
	}
	if c.Between == nil {
		return w.String()
	}
	w.Site = c.Between.Reader
	return strings.Replace(w.String(), " before ", " between "+c.Between.Writer+" and ", 1)
}

// heals lists the single families whose move heals.
func (s Said) heals() (list []string) {
	for _, x := range s.Substitution {
		if x.Heals && len(x.Families) == 1 {
			list = append(list, x.Families[0])
		}
	}
	return list
}

// Named tells whether what was said is what had to be said.
func (w Want) Named(s Said) bool {
	if s.Verdict != w.Verdict || (s.Culprit == nil) != (w.Site == "") {
		return false
	}
	if w.Site == "" {
		return true
	}
	c := s.Culprit
	site := c.Site
	if c.Between != nil {
		site = c.Between.Reader
	}
	side := w.Side
	if side == "" {
		side = "candidate"
	}
	return c.Side == side && (w.Step == Any || c.Step == w.Step) && (w.Layer == Any || c.Layer == w.Layer) && site == w.Site &&
		(c.Between != nil) == w.Between && (w.Between || c.Family == w.Family) && (w.Heals == "" || slices.Contains(s.heals(), w.Heals))
}
