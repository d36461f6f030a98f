package main

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"llmrun/internal/engine"
	"llmrun/internal/schematest"
)

const benchSchemaFile = "../../docs/schema/bench-1.schema.json"

func valid(t *testing.T, text string) error {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return schematest.Strict(t, benchSchemaFile).Validate(value)
}

// What a cache gives is limit enough for tests.
func init() { limitBytes = 8 << 20 }

// quick is a run of a few milliseconds.
var quick = []string{"bench", "--model", "tiny-qwen2", "--repeat", "2", "--prompt", "20", "--gen", "3", "--context", "0,100"}

func benchJSON(t *testing.T, args ...string) (*benchResult, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "bench.json")
	out, talk, exit := command("", append(slices.Clone(quick), append(args, "--json", "-o", file)...)...)
	if exit != exitDone || out != "" {
		t.Fatalf("exit %d, stdout %q: %s", exit, out, talk)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := valid(t, string(text)); err != nil {
		t.Fatal(err)
	}
	r, err := readBench(file)
	if err != nil {
		t.Fatal(err)
	}
	return r, file
}

// One run has a row for each phase, context and number of threads, what a token reads is what tiny-qwen2 holds, and a second run is put beside it.
func TestBench(t *testing.T) {
	r, file := benchJSON(t, "--threads", "2,1", "--profile")
	if len(r.Rows) != 6 || len(r.Limit) != 2 || len(r.Profile) != 2 || r.Env.Metal != nil || r.Interrupted {
		t.Fatalf("%d rows, %d limits, %d profiles, Metal %v, interrupted %t", len(r.Rows), len(r.Limit), len(r.Profile), r.Env.Metal, r.Interrupted)
	}
	if r.Load.PeakBytes < r.Model.Bytes || r.PeakBytes < r.Load.PeakBytes || r.Load.Tokenizer == nil {
		t.Errorf("memory %d, then %d, for a model of %d; tokenizer %v", r.Load.PeakBytes, r.PeakBytes, r.Model.Bytes, r.Load.Tokenizer)
	}
	for i, row := range r.Rows {
		want := benchRow{Model: "tiny-qwen2", Device: "cpu", ComputeType: "float32", Threads: 1 + i/3, Phase: phaseDecode, Tokens: 3, Context: []int{0, 0, 100}[i%3]}
		if i%3 == 0 {
			want.Phase, want.Tokens = phasePrefill, 20
		}
		got := row
		got.TokensPerSecond, got.BytesPerToken, got.CacheBytes, got.ShareOfLimit, got.FLOPPerToken, got.GrowthSeconds, got.Growth = spread{}, 0, 0, 0, 0, 0, 0
		if got != want {
			t.Errorf("row %d: want %+v, got %+v", i, want, got)
		}
		if s := row.TokensPerSecond; !(0 < s.Min && s.Min <= s.Median && s.Median <= s.Max) {
			t.Errorf("row %d: %+v", i, s)
		}
	}
	// Six layers with 2 KV heads of 32: float32 keys and values of 101, 102 and 103 positions. Of weights, a token reads all but the rest of the embedding
	// and what the file says in names and sizes; its 768 rows are those of the projection, too.
	long := r.Rows[2]
	layers, width := 6.0, 64.0
	if want := layers * 2 * width * 4 * 102; long.CacheBytes != want {
		t.Errorf("cache: want %v bytes, got %v", want, long.CacheBytes)
	}
	if weights := long.BytesPerToken - long.CacheBytes; weights > float64(r.Model.Bytes)*1.01 || weights < float64(r.Model.Bytes)*0.98 {
		t.Errorf("weights: want about the file's %d bytes, got %v", r.Model.Bytes, weights)
	}
	rate, limit := long.TokensPerSecond, r.Limit["1"]
	if got := long.ShareOfLimit / long.BytesPerToken; got < rate.Min/limit.Max || got > rate.Max/limit.Min {
		t.Errorf("share: want that of %v of %v, got %v", rate, limit, long.ShareOfLimit)
	}
	again, _ := benchJSON(t, "--threads", "2", "--against", file)
	for i, row := range again.Rows {
		if want := row.TokensPerSecond.Median / r.Rows[3+i].TokensPerSecond.Median; math.Abs(row.Ratio/want-1) > 1e-12 {
			t.Errorf("row %d: want ratio %v, got %v", i, want, row.Ratio)
		}
	}
	if want := again.Limit["2"].Median / r.Limit["2"].Median; again.Against == nil || again.Against.File != file || math.Abs(again.Against.Limit/want-1) > 1e-12 {
		t.Errorf("against %+v, want the limits' ratio %v", again.Against, want)
	}
}

func TestBenchMetal(t *testing.T) {
	needMetal(t)
	r, _ := benchJSON(t, "--device", "metal", "--compute-type", "float16")
	if r.Env.Metal == nil || len(r.Rows) != 3 || r.Rows[0].Device != "metal" || r.Rows[0].ComputeType != "float16" {
		t.Errorf("%+v", r)
	}
}

func TestBenchRefuses(t *testing.T) {
	earlier := filepath.Join(t.TempDir(), "earlier.json")
	if err := os.WriteFile(earlier, []byte(`{"schema": "llmrun.compare/1"}`), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ args, want string }{
		{"--threads 0", "--threads: want at least 1, got 0"},
		{"--context 16,-1", "--context: want at least 0, got -1"},
		{"--gen 0", "--gen: want at least 1, got 0"},
		{"--repeat 0", "--repeat: want at least 1"},
		{"--prompt 0", "--prompt: want at least 1"},
		{"--device gpu", "--device: want cpu or metal"},
		{"--device metal --threads 1", "--threads: want --device cpu"},
		{"--compute-type int9", "compute type: want one of"},
		{"--context 99999999999", "new session of"},
		{"--against nowhere.json", "--against: open nowhere.json"},
		{"--against " + earlier, `want schema "llmrun.bench/1" with rows, file has "llmrun.compare/1" and 0 rows`},
		{"-o nowhere/bench.json", "--output nowhere/bench.json"},
	} {
		out, talk, exit := command("", append([]string{"bench", "--model", "tiny-qwen2", "--repeat", "1"}, strings.Fields(test.args)...)...)
		if exit != exitCannotRun || out != "" || !strings.Contains(talk, test.want) {
			t.Errorf("%s: exit %d, stdout %q, want %q, got %q", test.args, exit, out, test.want, talk)
		}
	}
}

func TestSpread(t *testing.T) {
	for _, test := range []struct {
		values []float64
		want   spread
		width  float64
	}{
		{[]float64{3}, spread{3, 3, 3}, 0},
		{[]float64{5, 1}, spread{3, 1, 5}, 4. / 3},
		{[]float64{9, 2, 4}, spread{4, 2, 9}, 7. / 4},
		{[]float64{4, 3, 1, 2}, spread{2.5, 1, 4}, 3 / 2.5},
	} {
		if got := spreadOf(test.values); got != test.want || got.width() != test.width {
			t.Errorf("%v: want %v and width %v, got %v and %v", test.values, test.want, test.width, got, got.width())
		}
	}
}

// aBench is a finished run with round numbers.
func aBench() *benchResult {
	load, others := 0.25, 0.0
	return &benchResult{
		Schema: benchSchema, Env: machine{Version: "v1", CPU: cpuFacts{Model: "a cpu", Cores: 2, Kernels: "avx2"}},
		Model: benchModel{"m", "float16", 1000e6}, Busy: busyness{&load, &others},
		Limit: map[string]spread{"2": {20e9, 19e9, 21e9}, "10": {40e9, 40e9, 40e9}},
		Load:  benchLoad{spread{0.05, 0.05, 0.05}, spread{0.1, 0.1, 0.1}, nil, 1040e6, 1.04}, PeakBytes: 1100e6, Warnings: []string{},
		Rows: []benchRow{
			{Model: "m", Device: "cpu", ComputeType: "float32", Threads: 2, Phase: phasePrefill, Tokens: 512, TokensPerSecond: spread{120, 110, 125}, FLOPPerToken: 1e9},
			{Model: "m", Device: "cpu", ComputeType: "float32", Threads: 2, Phase: phaseDecode, Tokens: 64, Context: 1024, TokensPerSecond: spread{16, 15, 17},
				BytesPerToken: 1000e6, CacheBytes: 100e6, ShareOfLimit: 0.8, FLOPPerToken: 1e9},
		},
	}
}

func TestBenchFinish(t *testing.T) {
	r := aBench()
	r.Profile = []benchProfile{{Threads: 2, Context: 16, Seconds: 0.5, Sites: []benchSite{{Site: "lm_head", Family: "lm_head", Seconds: 0.125, Bytes: 1875e6}, {Seconds: 0.375}}}}
	r.finish()
	if s := r.Profile[0].Sites; s[0].Share != 0.25 || s[0].ShareOfLimit != 0.75 || s[1].Share != 0.75 || s[1].ShareOfLimit != 0 {
		t.Errorf("%+v", s)
	}
	if len(r.Warnings) > 0 {
		t.Errorf("a quiet machine is doubted: %q", r.Warnings)
	}
	// Now a busy one.
	r = aBench()
	*r.Busy.LoadAverage, *r.Busy.OtherCores = 1.5, 0.4
	r.Rows[1].TokensPerSecond.Min = 8
	r.Rows[1].Threads = 4
	r.finish()
	want := []string{
		"the machine was busy before the run: load average 1.5",
		"other programs, or other guests of the host, took 0.4 cores during the run",
		"4 threads share 2 cores",
		"the rounds are more than 20 % apart for 1 of 4 figures, most for decode of 64 tokens at 1024 with 4 threads: 56 %",
	}
	if strings.Join(r.Warnings, "\n") != strings.Join(want, "\n") {
		t.Errorf("want %q, got %q", want, r.Warnings)
	}
}

func TestBenchCompare(t *testing.T) {
	r, earlier := aBench(), aBench()
	earlier.Rows[1].TokensPerSecond.Median = 12.8
	earlier.Rows[0].Tokens = 100 // another measurement
	earlier.Limit["2"] = spread{16e9, 16e9, 16e9}
	r.compare("earlier.json", earlier)
	if r.Rows[0].Ratio != 0 || r.Rows[1].Ratio != 1.25 || r.Against.Limit != 1.25 || len(r.Warnings) > 0 {
		t.Errorf("%+v, limit %v, %q", r.Rows, r.Against.Limit, r.Warnings)
	}
	for i := range earlier.Rows {
		earlier.Rows[i].Model, earlier.Rows[i].Device = "n", "metal"
	}
	earlier.Env.CPU.Model = "another cpu"
	r.compare("earlier.json", earlier)
	want := []string{"earlier.json has another model: n, not m", "earlier.json has another device: metal, not cpu", "earlier.json was measured on another machine: another cpu"}
	if strings.Join(r.Warnings, "\n") != strings.Join(want, "\n") {
		t.Errorf("want %q, got %q", want, r.Warnings)
	}
}

// Contexts that learned positions do not reach are left out, and said to be.
func TestBenchPositions(t *testing.T) {
	out, talk, exit := command("", append(slices.Clone(quick[:len(quick)-2]), "--model", "../../testdata/golden/v2", "--context", "4,9999")...)
	want := "warning       context 9999 is left out: the model has learned "
	if exit != exitDone || !strings.Contains(out, want) || strings.Count(out, "\n    decode ") != 1 {
		t.Errorf("exit %d, want %q and one row of decode, got %s%s", exit, want, out, talk)
	}
	_, talk, exit = command("", append(slices.Clone(quick[:len(quick)-2]), "--model", "../../testdata/golden/v2", "--context", "9999")...)
	if want := "--context: the model has learned "; exit != exitCannotRun || !strings.Contains(talk, want) {
		t.Errorf("exit %d, want %q, got %s", exit, want, talk)
	}
}

// Shares and growth are those of a round, though memory is twice as fast in one of three: 16 tokens/s of 1 GB are 0.8 of 20 GB/s, and 250 MB more
// take 12.5 ms there, where from 16 to 12.8 tokens/s are 15.625 ms.
func TestBenchRounds(t *testing.T) {
	rows := slices.Grow(aBench().Rows, 1)[:3]
	rows[2] = rows[1]
	rows[1].Context, rows[2].Context, rows[2].BytesPerToken = 16, 8192, 1250e6
	b := &bench{benchFlags: &benchFlags{repeat: 3}, result: &benchResult{Rows: rows},
		rates: [][]float64{{100, 110, 120}, {16, 32, 16}, {12.8, 12.8, 25.6}}, limits: [][]float64{nil, {20e9, 40e9, 20e9}, {20e9, 20e9, 40e9}}}
	r := b.finish()
	close := func(got, want float64) bool { return math.Abs(got-want) < 1e-12 }
	if !close(r.Rows[1].ShareOfLimit, 0.8) || !close(r.Rows[2].ShareOfLimit, 0.8) || r.Rows[0].ShareOfLimit != 0 {
		t.Errorf("share: want 0.8 of decoding and none of prefill, got %v", r.Rows)
	}
	if long := r.Rows[2]; !close(long.Growth, 1.25) || !close(long.GrowthSeconds, 0.015625) || r.Rows[0].Growth != 0 || r.Rows[1].Growth != 0 {
		t.Errorf("growth: want 1.25 and 15.625 ms of the longer context, got %v", r.Rows)
	}
	if got := r.Limit["2"]; got != (spread{20e9, 20e9, 40e9}) {
		t.Errorf("limit: got %v", got)
	}
}

// What is interrupted gives the rows that have a round.
func TestBenchInterrupted(t *testing.T) {
	rows := aBench().Rows
	b := &bench{benchFlags: &benchFlags{repeat: 3}, result: &benchResult{Rows: rows}, rates: [][]float64{{100, 110, 120}, nil}, limits: make([][]float64, 2)}
	if r := b.finish(); len(r.Rows) != 1 || r.Rows[0].Phase != phasePrefill || r.Rows[0].TokensPerSecond != (spread{110, 100, 120}) || !r.Interrupted {
		t.Errorf("%+v", r)
	}
}

// place is an op that is nowhere but at its site.
type place struct {
	engine.Op
	name string
	fam  engine.Family
}

func (p place) Site() engine.Site     { return engine.Site{Name: p.name} }
func (p place) Family() engine.Family { return p.fam }

func TestProfile(t *testing.T) {
	program := []engine.Op{place{nil, "gate", engine.FamilyLinear}, place{nil, "act", engine.FamilyActivation}, place{nil, "gate", engine.FamilyLinear}}
	costs := []engine.Cost{{Weights: 100, Cache: 10}, {}, {Weights: 200}}
	p := profileOf(2, 16, []float64{10, 12, 9}, map[string][]float64{"gate": {5, 6, 7}, "act": {1, 1, 3}}, program, costs)
	want := []benchSite{{Site: "gate", Family: "linear", Seconds: 6, Bytes: 310}, {Site: "act", Family: "activation", Seconds: 1}, {Seconds: 3}}
	if p.Threads != 2 || p.Context != 16 || p.Seconds != 10 || len(p.Sites) != len(want) {
		t.Fatalf("%+v", p)
	}
	for i := range want {
		if p.Sites[i] != want[i] {
			t.Errorf("site %d: want %+v, got %+v", i, want[i], p.Sites[i])
		}
	}
}

func TestBenchText(t *testing.T) {
	r := aBench()
	r.compare("earlier.json", aBench())
	r.finish()
	var got bytes.Buffer
	if err := r.print(&got); err != nil {
		t.Fatal(err)
	}
	want := `bench         m   weights float16, 1000.0 MB   cpu (avx2) float32   llmrun v1
read limit    20.0 GB/s with 2 threads   (19.0–21.0)
read limit    40.0 GB/s with 10 threads   (40.0–40.0)
load          ready in 50.0 ms, first token after 100 ms   (file in the page cache)
memory        1040.0 MB when loaded, 1.04 of model.bin   1100.0 MB at most
against       earlier.json   m on cpu float32, llmrun v1   read limit × 1.00

     phase   threads   tokens   context   tok/s    min    max   MB/token   cache   of limit   growth   GFLOP/s    ratio
   prefill         2      512         0     120    110    125          –       –          –        –       120   × 1.00
    decode         2       64      1024    16.0   15.0   17.0     1000.0   100.0       80 %        –      16.0   × 1.00
`
	if got.String() != want {
		t.Errorf("want\n%sgot\n%s", want, got.String())
	}
}

// TestBenchSchemaRefuses: the schema says no to what is none.
func TestBenchSchemaRefuses(t *testing.T) {
	r := aBench()
	r.finish()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := valid(t, string(text)); err != nil {
		t.Fatal(err)
	}
	for _, change := range [][2]string{
		{`"phase":"decode"`, `"phase":"think"`},
		{`"median":16,`, ``},
		{`"median":16,`, `"median":0,`},
		{`"limit_bytes_per_second":{"10"`, `"limit_bytes_per_second":{"ten"`},
		{`"threads":2`, `"threads":0`},
		{`"interrupted":false,`, ``},
		{`"peak_ratio"`, `"peak_rate"`},
	} {
		changed := strings.Replace(string(text), change[0], change[1], 1)
		if changed == string(text) {
			t.Fatalf("%q is not in %s", change[0], text)
		}
		if valid(t, changed) == nil {
			t.Errorf("%q for %q is valid", change[1], change[0])
		}
	}
}

// TestPeakBytes: what is touched counts.
func TestPeakBytes(t *testing.T) {
	memory := make([]byte, 64<<20)
	for i := range memory {
		memory[i] = byte(i)
	}
	if got := peakBytes(); got < int64(len(memory)) {
		t.Errorf("%d bytes, though %d were written", got, len(memory))
	}
	runtime.KeepAlive(memory)
}
