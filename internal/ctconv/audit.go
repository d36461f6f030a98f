package ctconv

import (
	"fmt"
	"slices"
	"strconv"
)

// Verdict says what became of a declared value.
type Verdict string

// The verdicts. Changed and Dropped are what makes a converted model another model.
const (
	OK        Verdict = "ok"
	Changed   Verdict = "CHANGED"   // written with another value
	Dropped   Verdict = "DROPPED"   // declared, in force, and not written
	Defaulted Verdict = "DEFAULTED" // not written, and CTranslate2's default is the declared value
	Extra     Verdict = "EXTRA"     // written, not declared
)

// worse is the graver of two verdicts.
func worse(a, b Verdict) Verdict {
	order := []Verdict{OK, Defaulted, Extra, Dropped, Changed}
	return order[max(slices.Index(order, a), slices.Index(order, b))]
}

// Row is one line of the audit: what the original config declares against what the converter wrote.
type Row struct {
	Field    string  `json:"field"`
	Declared string  `json:"declared"`
	Written  string  `json:"written"`
	Verdict  Verdict `json:"verdict"`
	Explains string  `json:"explains"` // which symptom it can and cannot explain; "–" for none
	Ignored  bool    `json:"ignored,omitempty"`
}

// Bad tells whether the row makes the converted model another one, and nobody said that this is known.
func (r Row) Bad() bool { return !r.Ignored && (r.Verdict == Changed || r.Verdict == Dropped) }

const (
	none       = "–"
	everywhere = "converted ≠ original in every layer; never cpu ≠ metal"
	broken     = "converted ≠ original, another model altogether; never cpu ≠ metal"
)

// audit compares m, which has so many layers, with what hf declares.
type audit struct {
	m      *Model
	hf     *HF
	layers int
	rows   []Row
}

// Audit compares what the original config declares with what the file says, field by field. A field that neither
// knows has no row. What it finds can make the converted model differ from the original, but never two backends that
// read the same file.
func (m *Model) Audit(hf *HF) []Row {
	a := &audit{m: m, hf: hf, layers: m.Layers()}
	a.activation()
	a.softcaps()
	a.window()
	a.queryScale()
	a.normOffset()
	a.rope()
	a.rotaryDim()
	a.epsilon()
	a.token("bos_token", m.Config.BOSToken, "prompts must carry it: the engine adds none")
	a.token("eos_token", m.Config.EOSToken, none)
	a.sizes()
	a.tied()
	return a.rows
}

// row appends a line; explains is what its field explains if the file is not as declared.
func (a *audit) row(field, declared, written string, v Verdict, explains string) {
	r := Row{Field: field, Declared: plain(declared), Written: plain(written), Verdict: v, Explains: explains}
	if v == OK || v == Defaulted {
		r.Explains = none
	}
	a.rows = append(a.rows, r)
}

// plain quotes what would disturb a table or a terminal: both files are of unknown origin.
func plain(s string) string {
	if printable([]byte(s)) {
		return s
	}
	return strconv.Quote(s)
}

// note makes the last row explain something whatever its verdict.
func (a *audit) note(explains string) { a.rows[len(a.rows)-1].Explains = explains }

// scalar is the value of a scalar variable, if the file has it.
func (a *audit) scalar(name string) (float64, bool) {
	v, _, ok, err := a.m.scalar(name)
	return v, ok && err == nil
}

// layer is the value of layer i's scalar variable, or absent.
func (a *audit) layer(i int, name string, absent float64) float64 {
	if v, ok := a.scalar(fmt.Sprintf("decoder/layer_%d/%s", i, name)); ok {
		return v
	}
	return absent
}

// has tells whether any layer of the file has the scalar variable.
func (a *audit) has(name string) bool {
	for i := range a.layers {
		if _, ok := a.scalar(fmt.Sprintf("decoder/layer_%d/%s", i, name)); ok {
			return true
		}
	}
	return false
}
