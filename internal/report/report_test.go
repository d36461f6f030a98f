package report

import (
	"bytes"
	"encoding/json"
	"flag"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"llmrun/internal/ctconv"
	"llmrun/internal/parity"
)

var update = flag.Bool("update", false, "write testdata anew")

var nan = ctconv.Number(math.NaN())

// steps makes steps whose tokens agree.
func steps(ids ...int) (list []parity.Step) {
	for i, id := range ids {
		list = append(list, parity.Step{Step: i + 1, ReferenceID: id, CandidateID: id, Margin: ctconv.Number(5 - i%3),
			KL: 3e-13, MaxAbs: 8e-6, Top: 5, Noise: 2e-5, Class: parity.ClassMatch})
	}
	return list
}

func comparison(verdict parity.Verdict, exit int, why string, prompts ...parity.Result) *parity.Comparison {
	c := &parity.Comparison{Schema: parity.Schema, Verdict: verdict, Exit: exit, Reason: why, MaxTokens: 4, Prompts: prompts,
		Model:     parity.Model{Name: "tiny", Spec: "TransformerDecoderSpec", Revision: 8},
		Reference: parity.Backend{Backend: "cpu", ComputeType: "float32"},
		Candidate: parity.Backend{Backend: "metal", Device: "host device, g++ 12.2", ComputeType: "float16", Host: true},
		Gates:     []parity.Gate{{Name: "BOS", OK: true}, {Name: "output varied", OK: verdict != parity.Inconclusive}},
	}
	for i := range prompts {
		if len(prompts[i].Vacuous) == 0 {
			c.Kept++
		}
	}
	return c
}

func result(id string, ids ...int) parity.Result {
	return parity.Result{ID: id, IDs: []int{2, 7}, ReferenceIDs: ids, CandidateIDs: ids, Matched: len(ids), Compared: len(ids),
		Noise: 2e-5, Allowed: 1.6e-4, Vacuous: []string{}, NonFinite: []parity.NonFinite{}, Steps: steps(ids...)}
}

func match() *parity.Comparison {
	tied := result("tied", 10, 11, 12, 13)
	tied.Steps[2].CandidateID, tied.Steps[2].Gap, tied.Steps[2].Class, tied.Matched = 14, 0.00012, parity.ClassNearTie, 3
	tied.CandidateIDs = []int{10, 11, 14, 13}
	poor := result("nobos", 5, 5, 5, 5)
	poor.Vacuous = []string{"the prompt has no BOS and the model has <bos>=2", "both sides emitted id 5 4 times"}
	return comparison(parity.Match, 0, "", result("once", 10, 11, 12, 13), tied, poor)
}

func diverged() *parity.Comparison {
	r := result("once", 10, 11, 12, 13)
	two := 2
	r.FirstFlip, r.Matched, r.Compared, r.CandidateIDs = &two, 1, 1, []int{10}
	for i := range r.Steps[1:] {
		s := &r.Steps[i+1]
		s.CandidateID, s.Gap, s.KL, s.MaxAbs, s.Top, s.Class = parity.NoToken, nan, nan, nan, 0, parity.ClassUnmeasured
	}
	r.Steps[1].CandidateNonFinite, r.Steps[1].Class = 96, parity.ClassNonFinite
	r.NonFinite = []parity.NonFinite{{Side: "candidate", Step: 2, Count: 96, Of: 96, Birth: &parity.Birth{Step: 2, Layer: 7, Site: "act",
		Family: "activation", Op: "gelu_tanh", Count: 1, Of: 352, First: 107, Value: "NaN",
		Inputs: []parity.Input{{Name: "gate", Value: 11.7562}, {Name: "up", Value: ctconv.Number(math.Inf(-1))}}}}}
	flip := result("fox", 20, 21, 22, 23)
	three := 3
	flip.FirstFlip, flip.Matched, flip.CandidateIDs = &three, 3, []int{20, 21, 1, 0}
	flip.Steps[2].CandidateID, flip.Steps[2].Gap, flip.Steps[2].MaxAbs, flip.Steps[2].Class = 1, 2.5, 3, parity.ClassFlip
	return comparison(parity.Diverged, 1, "once: step 2: 96 of 96 logits of the candidate are NaN or infinite, born at step 2 layer 7 act (gelu_tanh) (2 of 2 prompts diverge)", r, flip)
}

func inconclusive() *parity.Comparison {
	r := result("prompt", 5, 5, 5, 5)
	r.Vacuous = []string{"both sides emitted id 5 4 times"}
	return comparison(parity.Inconclusive, 3, "prompt: both sides emitted id 5 4 times: this run could not have failed", r)
}

func words(ids []int) string {
	var s strings.Builder
	for _, id := range ids {
		s.WriteString(map[int]string{0: "<pad>", 1: "\x1b[2J"}[id])
		if id > 1 {
			s.WriteString(" w")
			s.WriteByte(byte('a' + id - 10))
		}
	}
	return s.String() + "\n"
}

// TestGolden holds text and JSON to files; go test -update writes them.
func TestGolden(t *testing.T) {
	for name, c := range map[string]*parity.Comparison{"match": match(), "diverged": diverged(), "inconclusive": inconclusive(),
		"culprit": gelu(), "custody": custody(), "judged": good(), "interrupted": interrupted()} {
		var text, color, ids, object bytes.Buffer
		for _, err := range []error{
			Text(&text, c, Options{Decode: words}), Text(&color, c, Options{Decode: words, Color: true}),
			Text(&ids, c, Options{}), JSON(&object, c),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		golden(t, name+".txt", text.Bytes())
		golden(t, name+".json", object.Bytes())
		lines := strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
		last := lines[len(lines)-1]
		if !strings.HasPrefix(last, "verdict") || strings.Fields(last)[1] != string(c.Verdict) {
			t.Errorf("%s: the last line is %q", name, last)
		}
		var parsed struct{ Verdict parity.Verdict }
		if err := json.Unmarshal(object.Bytes(), &parsed); err != nil || parsed.Verdict != c.Verdict {
			t.Errorf("%s: JSON says %q (%v)", name, parsed.Verdict, err)
		}
		plain := color.String()
		for _, code := range []string{green, red, yellow, "0"} {
			plain = strings.ReplaceAll(plain, "\x1b["+code+"m", "")
		}
		if plain != text.String() || color.Len() == text.Len() {
			t.Errorf("%s: colour changes more than colour", name)
		}
		if strings.ContainsAny(text.String(), "\x1b\r\t") {
			t.Errorf("%s: text that a terminal obeys", name)
		}
		if name == "diverged" && !strings.Contains(ids.String(), "20 21 1 0") {
			t.Errorf("%s: without a tokenizer, ids are shown:\n%s", name, ids.String())
		}
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs from what is made now:\n%s", file, got)
	}
}

// TestLongStrip shows only the words around the first difference.
func TestLongStrip(t *testing.T) {
	ids := make([]int, 60)
	for i := range ids {
		ids[i] = 10 + i
	}
	r := result("long", ids...)
	at := 31
	r.FirstFlip, r.CandidateIDs = &at, append(append([]int{}, ids[:30]...), 5, 5)
	r.Steps[30].CandidateID, r.Steps[30].Class = 5, parity.ClassFlip
	var text bytes.Buffer
	if err := Text(&text, comparison(parity.Diverged, 1, "why", r), Options{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"cpu    …32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 …\n",
		"metal  …32 33 34 35 36 37 38 39 5 5   first flip: step 31\n",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("want %q in\n%s", want, text.String())
		}
	}
}
