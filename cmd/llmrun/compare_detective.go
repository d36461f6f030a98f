package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"llmrun/internal/engine"
	"llmrun/internal/near"
	"llmrun/internal/parity"
)

// detectiveFlags say how a difference is investigated.
type detectiveFlags struct {
	shadow, substitute, legs string

	mode     parity.ShadowMode
	families []engine.Family
	tested   []string
	asked    bool // for legs, by name
}

func (f *detectiveFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.shadow, "shadow", "auto", "recompute ops in float64 from their own inputs: auto|off|all; auto is at the first steps and at the first suspicious one")
	flags.StringVar(&f.substitute, "substitute", "auto", "prove the culprit by moving ops to the other backend: auto|off|`FAMILIES`, such as norm,softmax")
	flags.StringVar(&f.legs, "legs", strings.Join(parity.DefaultLegs, ","), "hold each backend to itself: `LIST`|all|off, of "+strings.Join(parity.LegNames, ", "))
}

func (f *detectiveFlags) check(flags *pflag.FlagSet) error {
	switch f.shadow {
	case "auto":
		f.mode = parity.ShadowAuto
	case "all":
		f.mode = parity.ShadowAll
	case "off":
		f.mode = parity.ShadowOff
	default:
		return fmt.Errorf("--shadow: want auto, off or all, got %q", f.shadow)
	}
	if f.substitute != "auto" && f.substitute != "off" {
		for _, name := range strings.Split(f.substitute, ",") {
			family := engine.Family(strings.TrimSpace(name))
			if !slices.Contains(engine.Families, family) || family == engine.FamilySample {
				return hint(fmt.Errorf("--substitute: want auto, off or families of %v, got %q", engine.Families[:len(engine.Families)-1], name),
					"llmrun compare --substitute "+near.One(name, familyNames(), "auto"))
			}
			f.families = append(f.families, family)
		}
	}
	f.asked = flags.Changed("legs")
	switch f.legs {
	case "off":
		return nil
	case "all":
		f.tested = parity.LegNames
		return nil
	}
	for _, name := range strings.Split(f.legs, ",") {
		name = strings.TrimSpace(name)
		if !slices.Contains(parity.LegNames, name) {
			return hint(fmt.Errorf("--legs: want all, off or some of %s, got %q", strings.Join(parity.LegNames, ", "), name),
				"llmrun compare --legs "+near.One(name, parity.LegNames, "all"))
		}
		f.tested = append(f.tested, name)
	}
	return nil
}

func familyNames() (names []string) {
	for _, f := range engine.Families {
		names = append(names, string(f))
	}
	return names
}

// options puts into o how to investigate.
func (f *detectiveFlags) options(o *parity.Options) {
	o.Shadow, o.Substitute, o.Families = f.mode, f.substitute != "off", f.families
	o.Legs, o.LegsAsked = f.tested, f.asked
}

// work shows, on a terminal, a bar for the tokens and then one for each thing that is investigated.
type work struct {
	progress
	what string
}

// showWork lets o draw bars.
func (f *compareFlags) showWork(a *app, o *parity.Options, steps int) *work {
	w := &work{a.progress("compare", steps, f.showsProgress()), "compare"}
	o.Progress = func(_ string, done, _ int) { w.set(done) }
	o.Working = func(what string, done, total int) {
		if kind, _, _ := strings.Cut(what, ":"); kind != w.what {
			w.done()
			w.progress, w.what = a.progress(what, total, f.showsProgress()), kind
		}
		w.set(done)
	}
	return w
}
