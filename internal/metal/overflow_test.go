package metal

import (
	flags "flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"llmrun/internal/cpuref/oracle"
	"llmrun/internal/engine"
	"llmrun/internal/num"
	"llmrun/shaders"
)

var update = flags.Bool("update", false, "write ../../docs/overflow-audit.md anew")

const auditPage = "../../docs/overflow-audit.md"

// auditMode is a way to compile the shaders. The first is the one that ships.
type auditMode struct {
	name string
	fast bool
	edit func(file, text string) (string, error)
}

var auditModes = []auditMode{
	{"as shipped", false, nil},
	{"fast math", true, reciprocals},
	{noGuards, true, func(file, text string) (string, error) {
		text, err := reciprocals(file, text)
		return unguarded.Replace(text), err
	}},
}

const noGuards = "fast math, no guards"

// unguarded takes from a shader what holds even under fast math.
var unguarded = strings.NewReplacer("precise::", "", "clamp(u, -15.0f, 15.0f)", "u")

// hasGuards tells whether unguarded changes the kernel.
func hasGuards(kernel string) bool {
	text, err := shaders.Source(strings.TrimSuffix(kernel, "4")+".metal", nil)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return unguarded.Replace(text) != text
}

// divisions are those whose divisor may be large, as fast math computes them: by the divisor's reciprocal. The host device's compiler divides in either mode.
var divisions = map[string][]string{
	"activation.h": {"x / (1.0f + precise::exp(-x))", "fast::divide(x, 1.0f + precise::exp(-x))",
		"1.0f / (1.0f + precise::exp(-x))", "fast::divide(1.0f, 1.0f + precise::exp(-x))",
		"x / (1.0f + precise::exp(-1.702f * x))", "fast::divide(x, 1.0f + precise::exp(-1.702f * x))"},
	"softcap.metal": {"float(x[i]) / args.cap", "fast::divide(float(x[i]), args.cap)"},
	"softmax.metal": {"precise::exp(float(x[j]) - top) / sum", "fast::divide(precise::exp(float(x[j]) - top), sum)"},
}

func reciprocals(file, text string) (string, error) {
	for pair := range slices.Chunk(divisions[file], 2) {
		if n := strings.Count(text, pair[0]); n != 1 {
			return "", fmt.Errorf("%q is there %d times", pair[0], n)
		}
		text = strings.Replace(text, pair[0], pair[1], 1)
	}
	return text, nil
}

// spots counts elements, and keeps the one with the smallest argument.
type spots struct {
	n                   int
	argument, got, want float64
}

func (s *spots) add(argument, got, want float64) {
	if s.n == 0 || math.Abs(argument) < math.Abs(s.argument) {
		s.argument, s.got, s.want = argument, got, want
	}
	s.n++
}

// verdict is what became of a sweep.
type verdict struct {
	ulps, ratio float64 // the worst of results that are normal and not lost; the worst error over what is allowed
	wrong       spots   // beyond what is allowed
	lost        spots   // within what is allowed, but the error is half the result and more
	beyond      spots   // wrong or lost, past the sweep's limit
	elements    int
}

// nearlySubnormal is 2^24 times the smallest normal value: what is smaller may have lost digits to a subnormal that was flushed.
const nearlySubnormal = 0x1p-102

// audit runs a sweep and holds what it gave to the oracle. If subnormals are flushed, results and arguments that are nearly subnormal are left out.
func audit(t *testing.T, b *Backend, s sweep, flushed bool) verdict {
	t.Helper()
	j, err := s.run(b)
	if err != nil {
		t.Fatal(err)
	}
	got, err := j.Got()
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(s.argument) {
		t.Fatalf("BUG: %s: %d arguments for %d elements", s.expression, len(s.argument), len(got))
	}
	least, digits := 0x1p-126, b.activations.Precision().Digits // the smallest normal value
	if b.activations == num.Float16 {
		least = 0x1p-14
	}
	v := verdict{elements: len(got)}
	for i, g := range got {
		want, argument := j.Want[i], s.argument[i]
		if flushed && (math.Abs(want) < nearlySubnormal || math.Abs(argument) < nearlySubnormal) {
			continue
		}
		ratio := j.Strays(i, g)
		if s.limit != 0 && math.Abs(argument) > s.limit && !math.IsInf(argument, 0) {
			if ratio > 1 || math.Abs(g-want) > math.Abs(want)/2 {
				v.beyond.add(argument, g, want)
			}
			continue
		}
		if ratio > 1 {
			v.wrong.add(argument, g, want)
			continue
		}
		v.ratio = max(v.ratio, ratio)
		size := math.Abs(want)
		if s.size != nil {
			size = max(size, s.size[i])
		}
		if s.row > 0 {
			for _, other := range j.Want[i/s.row*s.row:][:s.row] {
				size = max(size, math.Abs(other))
			}
		}
		if !(size >= least) || math.IsInf(size, 0) || math.IsInf(g, 0) { // NaN, too
			continue
		}
		if math.Abs(g-want) > size/2 {
			v.lost.add(argument, g, want)
			continue
		}
		_, e := math.Frexp(size)
		v.ulps = max(v.ulps, math.Abs(g-want)/math.Ldexp(1, e-digits))
	}
	return v
}

// run runs the op, or the ops that are one, and judges.
func (s *sweep) run(b *Backend) (oracle.Judged, error) {
	if s.scores != nil {
		b.Run(s.scores)
		b.Run(s.softmax)
		b.Run(s.op)
		return oracle.JudgeAttention(s.scores, s.op.(*engine.Context))
	}
	b.Run(s.op)
	outputs, err := oracle.Judge(s.op)
	if err != nil {
		return oracle.Judged{}, err
	}
	return outputs[0], nil
}

// row is the verdict as a row of the page's table.
func (v verdict) row(s sweep, act num.DType, mode string) string {
	word, first := "holds", v.wrong
	switch {
	case v.wrong.n > 0:
		word = fmt.Sprintf("**wrong**, %.2g %%", 100*float64(v.wrong.n)/float64(v.elements))
	case v.beyond.n > 0:
		word, first = fmt.Sprintf("holds to %.2g", s.limit), v.beyond
	case v.lost.n > 0:
		word, first = "lost, as the bound allows", v.lost
	}
	where := ""
	if first.n > 0 {
		where = fmt.Sprintf("%.6g: %.6g for %.6g", first.argument, first.got, first.want)
	}
	return fmt.Sprintf("| %s | %s | %v | %s | %.2f | %.2f | %s | %s |", s.kernel, s.expression, act, mode, v.ulps, v.ratio, where, word)
}

// TestOverflowAudit sweeps every expression of every kernel. The shaders as they ship must hold everywhere, and their rows must be those of
// docs/overflow-audit.md, which -update writes.
func TestOverflowAudit(t *testing.T) {
	rows := map[string][]string{} // by kernel and expression
	var order, shipped []string
	for _, act := range []num.DType{num.Float32, num.Float16, num.BFloat16} {
		for _, m := range auditModes {
			if m.fast && act == num.BFloat16 {
				continue // kernels compute in float whatever the type: float16's rows tell what changes
			}
			t.Run(act.String()+", "+m.name, func(t *testing.T) {
				if m.fast && testing.Short() && !*update {
					t.Skip("what does not ship, in a short test")
				}
				b := open(t, Options{Activations: act, FastMath: m.fast, Fuse: true, Edit: m.edit})
				for _, s := range sweeps(t, act, b) {
					if m.name == noGuards && !hasGuards(s.kernel) {
						continue
					}
					v := audit(t, b, s, m.fast)
					v.check(t, b, s, m)
					key, row := s.kernel+s.expression, v.row(s, act, m.name)
					if rows[key] == nil {
						order = append(order, key)
					}
					rows[key] = append(rows[key], row)
					if !m.fast && b.Info().Host { // another device has other numbers, and another compiler contracts otherwise
						shipped = append(shipped, row)
					}
				}
			})
		}
	}
	var table []string
	for _, key := range order {
		table = append(table, rows[key]...)
	}
	comparePage(t, table, shipped)
}

// check fails the test if a mode gives other verdicts than it has to.
func (v verdict) check(t *testing.T, b *Backend, s sweep, m auditMode) {
	switch w := v.wrong; {
	case m.name == noGuards: // without its guards the first story comes back; so the audit sees it
		if strings.HasPrefix(s.expression, "gelu_tanh") && (w.n == 0 || math.Abs(w.argument) < 10 || math.Abs(w.argument) > 10.1) {
			t.Errorf("%s without guards: want it wrong from 10.0 on, found %d wrong, the first at %g", s.expression, w.n, w.argument)
		}
	case m.fast && (s.expression == "silu(x)·up" || !b.Info().Host): // a reciprocal is flushed: see the page
	case w.n > 0:
		t.Errorf("%s, %s: %d of %d elements are wrong, the first at %g: got %g, want %g", s.kernel, s.expression, w.n, v.elements, w.argument, w.got, w.want)
	}
}

// comparePage looks for the rows of what ships in the page, or writes all rows into it.
func comparePage(t *testing.T, rows, shipped []string) {
	page, err := os.ReadFile(auditPage)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- measured -->\n", "<!-- /measured -->"
	head, rest, ok := strings.Cut(string(page), begin)
	_, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s: want %q and %q", auditPage, strings.TrimSpace(begin), end)
	}
	if *update {
		table := "\n| kernel | expression | type | mode | worst ulp | worst error / allowed | first argument that goes wrong | verdict |\n|---|---|---|---|---|---|---|---|\n" + strings.Join(rows, "\n") + "\n\n"
		if err := os.WriteFile(auditPage, []byte(head+begin+table+end+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, row := range shipped {
		if !strings.Contains(rest, row+"\n") {
			t.Errorf("%s has not (go test -run OverflowAudit -update): %s", auditPage, row)
		}
	}
}
