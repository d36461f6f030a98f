package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
	"llmrun/internal/fault"
	"llmrun/internal/metal"
	"llmrun/internal/parity"
)

// chooseFault finds the mistake, and what shows it: where the user says nothing else, its model, compute type and prompt.
func (f *compareFlags) chooseFault(flags *pflag.FlagSet) (err error) {
	if f.fault == "" {
		return nil
	}
	if f.mistake, err = fault.Find(f.fault); err != nil {
		return err
	}
	m := &f.mistake
	own := flags.Changed("model")
	if !own && m.Model != "" {
		f.model = m.Model
	}
	if !flags.Changed("compute-type") {
		f.computeType = cmp.Or(m.ComputeType, "float32")
	}
	if !flags.Changed("metal-gemm") && m.MPS {
		f.metalGemm = "mps"
	}
	if !flags.Changed("metal-fuse") && len(m.Edits) > 0 && !m.Fused {
		f.metalFuse = "off" // or else nobody would run the kernel that is broken
	}
	if flags.Changed("prompts") || flags.Changed("prompt") || flags.Changed("ids") {
		return nil
	}
	switch {
	case !m.IDs():
		f.text = m.Text
	case !own: // ids mean nothing to another model
		f.ids = m.Text
	}
	return nil
}

// checkFault refuses a mistake in shaders on a side that has none.
func (f *compareFlags) checkFault() error {
	flag, side := "--candidate", f.candidate
	if f.mistake.Reference {
		flag, side = "--reference", f.reference
	}
	if len(f.mistake.Edits) > 0 && side != "metal" {
		return fmt.Errorf("--fault %s: want %s metal, whose shaders it changes, got %s", f.fault, flag, side)
	}
	return nil
}

// openSide opens the backend of the reference or the candidate, with the mistake if it is that side's.
func (f *compareFlags) openSide(side string, m *ctconv.Model) (engine.Backend, error) {
	name, broken := f.candidate, !f.mistake.Reference
	if side == "reference" {
		name, broken = f.reference, f.mistake.Reference
	}
	var o metal.Options
	if broken && len(f.mistake.Edits) > 0 {
		o = metal.Options{FastMath: f.mistake.FastMath, Edit: f.mistake.Edit}
	}
	b, err := f.openBackend(name, m, o)
	if err != nil || !broken || f.mistake.Wrap == nil {
		return b, err
	}
	return &mistaken{f.mistake.Wrap(b), b}, nil
}

// mistaken is a backend with a mistake around it.
type mistaken struct {
	engine.Backend
	inner engine.Backend
}

// Fusions is documented at engine.Fuser.
func (m *mistaken) Fusions() []engine.Fusion {
	if f, ok := m.inner.(engine.Fuser); ok {
		return f.Fusions()
	}
	return nil
}

// SetFusion is documented at engine.Fuser.
func (m *mistaken) SetFusion(name string, on bool) { m.inner.(engine.Fuser).SetFusion(name, on) }

// sides says what the sides do in their own way.
func (f *compareFlags) sides() (reference, candidate parity.Side) {
	side := parity.Side{Prompt: f.mistake.Prompt, Choose: f.mistake.Choose, Reset: f.mistake.Reset}
	if f.mistake.Reference {
		return side, parity.Side{}
	}
	return parity.Side{}, side
}

// listFaults is the catalogue, for people or as JSON.
func (f *compareFlags) listFaults(w io.Writer) error {
	if !f.json {
		table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
		for _, x := range fault.All() {
			fmt.Fprintf(table, "%s\t%s\t%s\n\t\tseen as: %v\n", x.ID, x.Kind, x.What, x.Want)
		}
		return table.Flush()
	}
	type entry struct {
		ID          string     `json:"id"`
		Kind        fault.Kind `json:"kind"`
		What        string     `json:"what"`
		Seen        string     `json:"seen"`
		Model       string     `json:"model"`
		ComputeType string     `json:"compute_type"`
	}
	list := struct {
		Schema string  `json:"schema"`
		Faults []entry `json:"faults"`
	}{Schema: "llmrun.faults/1"}
	for _, x := range fault.All() {
		list.Faults = append(list.Faults, entry{x.ID, x.Kind, x.What, x.Want.String(),
			cmp.Or(x.Model, "tiny-gemma2"), cmp.Or(x.ComputeType, "float32")})
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(list)
}
