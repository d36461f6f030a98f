package metal

import (
	"bytes"
	"errors"
	"maps"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
	"llmrun/internal/metal/hostmetal"
	"llmrun/internal/num"
)

// tensor is a weight of n float32 that are all v.
func tensor(name string, n int, v float32) ctconv.Tensor {
	data := make([]byte, 4*n)
	for i := range n {
		num.PutFloat32(num.Float32, data, i, v)
	}
	return ctconv.Tensor{Name: name, DType: num.Float32, Shape: []int{n}, Data: data}
}

func floats(t *testing.T, x engine.Buffer) []float32 {
	t.Helper()
	bytes, err := x.Host()
	if err != nil {
		t.Fatal(err)
	}
	f := make([]float32, x.Len())
	num.Float32s(f, x.DType(), bytes)
	return f
}

// TestLinearSameBits: a row gives the same bits alone and in a batch.
func TestLinearSameBits(t *testing.T) {
	const rows, cols, n = 8, 300, 37
	b := open(t, Options{Activations: num.Float32})
	buf := newBuffers(t, b)
	for _, w := range []num.DType{num.Float32, num.Float16, num.BFloat16} {
		op := &engine.Linear{Place: engine.Place{In: &engine.Pass{Rows: rows}, Name: "qkv"}, Out: buf(num.Float32, rows*n),
			X: buf(num.Float32, rows*cols), W: engine.Matrix{Buffer: buf(w, n*cols), Rows: n, Cols: cols}, Bias: buf(num.Float32, n)}
		fill(t, rand.New(rand.NewPCG(3, 4)), op)
		b.Run(op)
		batch, x := floats(t, op.Out), floats(t, op.X)
		op.In = &engine.Pass{Rows: 1}
		for r := range rows {
			host, err := op.X.Host()
			if err != nil {
				t.Fatal(err)
			}
			num.PutFloat32s(num.Float32, host, x[r*cols:(r+1)*cols])
			b.Run(op)
			for i, v := range floats(t, op.Out)[:n] {
				if math.Float32bits(v) != math.Float32bits(batch[r*n+i]) {
					t.Fatalf("%v weight: row %d alone gives %v at %d, in a batch %v", w, r, v, i, batch[r*n+i])
				}
			}
		}
	}
}

func addOp(buf func(num.DType, int) engine.Buffer, a, b engine.Buffer, n int) *engine.Add {
	return &engine.Add{Place: engine.Place{In: &engine.Pass{Step: 3, Rows: 1}, Layer: 2, Name: "layer_out"},
		Out: buf(num.Float32, n), A: a, B: b, Dim: n}
}

func TestUpload(t *testing.T) {
	b := open(t, Options{Activations: num.Float32})
	var sum engine.Buffer
	var weights []engine.Buffer
	// 3 odd ones share a chunk; the last has an MTLBuffer of its own, as it fills a chunk and more.
	for i, n := range []int{7, 1000, 33, chunkSize/4 + 5} {
		w, err := b.Upload(tensor("w", n, float32(i+1)))
		if err != nil {
			t.Fatal(err)
		}
		if at := w.(*buffer).offset; at%slotAlignment != 0 {
			t.Errorf("weight %d lies at byte %d", i, at)
		}
		weights = append(weights, w)
	}
	if own := weights[0].(*buffer).mtl; weights[2].(*buffer).mtl != own || weights[3].(*buffer).mtl == own {
		t.Error("want the small weights in one MTLBuffer and the large one in another")
	}
	for i := range 3 {
		op := addOp(newBuffers(t, b), weights[i], weights[i+1], 7)
		b.Run(op)
		sum = op.Out
		for _, v := range floats(t, sum) {
			if v != float32(2*i+3) {
				t.Fatalf("weights %d and %d add up to %v", i, i+1, v)
			}
		}
	}
	again := tensor("again", 9, 1)
	first, err := b.Upload(again)
	if err != nil {
		t.Fatal(err)
	}
	if second, _ := b.Upload(again); second != first {
		t.Error("the same bytes were uploaded twice")
	}
	again.Shape = []int{8}
	if _, err := b.Upload(again); err == nil || !strings.Contains(err.Error(), "again") {
		t.Errorf("a tensor with too many bytes: %v", err)
	}
	for _, n := range []int{0, -1, math.MaxInt, math.MaxInt / 4} {
		if _, err := b.NewBuffer(num.Float32, n); err == nil {
			t.Errorf("a buffer of %d elements was made", n)
		}
	}
}

// TestLimits makes the device seem small.
func TestLimits(t *testing.T) {
	b := open(t, Options{Activations: num.Float32})
	b.info.MaxBuffer = 100
	if _, err := b.NewBuffer(num.Float32, 26); err == nil || err.Error() != "metal: new buffer of 26 float32: want 104 bytes, the device's longest buffer has 100" {
		t.Errorf("beyond the longest buffer: %v", err)
	}
	b.info.WorkingSet = 99
	if _, err := b.Upload(tensor("w", 25, 1)); err == nil || !strings.HasPrefix(err.Error(), "metal: upload w: want ") {
		t.Errorf("beyond the working set: %v", err)
	}
	b.info.MaxBuffer = chunkSize
	if _, err := b.NewBuffer(num.Float32, 25); err == nil || !strings.HasSuffix(err.Error(), "the device recommends 99 at most") {
		t.Errorf("beyond the working set: %v", err)
	}
}

// TestAllDevices: the second way to a device, for where there is no default one.
func TestAllDevices(t *testing.T) {
	b := open(t, Options{Activations: num.Float32})
	b.thread.do(func() {
		all := devices()
		if all.count() == 0 {
			t.Error("a default device, but no devices")
			return
		}
		first := device{all.at(0).retain()}
		all.release()
		if first.name() == "" {
			t.Error("the first device has no name")
		}
		first.release()
	})
}

// TestNewBufferIsZero fills what a released buffer may have left.
func TestNewBufferIsZero(t *testing.T) {
	b := open(t, Options{Activations: num.Float16})
	for _, v := range floats(t, newBuffers(t, b)(num.Float16, 1000)) {
		if v != 0 {
			t.Fatalf("a new buffer holds %v", v)
		}
	}
}

// TestFailureStays: an id outside the vocabulary fails at its site, later ops are not run, and every Sync says the same.
func TestFailureStays(t *testing.T) {
	b := open(t, Options{Activations: num.Float32})
	buf := newBuffers(t, b)
	ids, out := buf(num.Int32, 1), buf(num.Float32, 4)
	later := addOp(buf, out, out, 4)
	host, err := ids.Host()
	if err != nil {
		t.Fatal(err)
	}
	host[0] = 3
	b.Run(&engine.Embed{Place: engine.Place{In: &engine.Pass{Step: 2, Rows: 1}, Layer: engine.NoLayer, Name: "embed"}, Out: out, IDs: ids,
		W: engine.Matrix{Buffer: buf(num.Float32, 12), Rows: 3, Cols: 4}, Scale: 1})
	b.Run(later)
	const want = "step 2 embed: metal: row 0 has id 3, the embedding has 3 rows"
	for range 2 {
		if err := b.Sync(); err == nil || err.Error() != want {
			t.Fatalf("want %q, got %v", want, err)
		}
	}
	if _, err := out.Host(); err == nil || err.Error() != want {
		t.Fatalf("the host view of a failed backend: %v", err)
	}
	if _, err := b.NewBuffer(num.Float32, 1); err == nil {
		t.Error("a failed backend gives buffers")
	}
}

// TestFailureNamesKernel: a kernel without a pipeline fails at its op's site.
func TestFailureNamesKernel(t *testing.T) {
	b := open(t, Options{Activations: num.Float32, Edit: func(file, source string) (string, error) {
		return strings.ReplaceAll(source, `"add_f32"`, `"gone"`), nil
	}})
	buf := newBuffers(t, b)
	b.Run(addOp(buf, buf(num.Float32, 4), buf(num.Float32, 4), 4))
	if err := b.Sync(); err == nil || !strings.HasPrefix(err.Error(), "step 3 layer 2 layer_out: metal kernel add_f32: ") {
		t.Errorf("an op without its kernel: %v", err)
	}
}

// TestFailureOnDevice makes a kernel write beyond its buffer. Apple's GPUs may not notice; the host device does, and names
// the kernel, which is the first op's here: the ops around it are other kernels.
func TestFailureOnDevice(t *testing.T) {
	b := open(t, Options{Activations: num.Float32, Edit: func(file, source string) (string, error) {
		return strings.ReplaceAll(source, "out[i] = T(float(a[i])", "out[i + 1000] = T(float(a[i])"), nil
	}})
	if !b.Info().Host {
		t.Skip("only the host device guards its buffers")
	}
	buf := newBuffers(t, b)
	x := buf(num.Float32, 4)
	cap := &engine.SoftCap{Place: engine.Place{In: &engine.Pass{Step: 3, Rows: 1}, Layer: engine.NoLayer, Name: "logits"},
		Out: buf(num.Float32, 4), X: buf(num.Float32, 4), Dim: 4, Cap: 1}
	op := addOp(buf, x, x, 4)
	b.Run(cap)
	b.Run(op)
	b.Run(cap)
	for range 2 {
		if err := b.Sync(); err == nil || !strings.HasPrefix(err.Error(), "step 3 layer 2 layer_out: metal kernel add_f32: MTLCommandBufferErrorDomain") {
			t.Fatalf("a kernel that leaves its buffer: %v", err)
		}
	}
	if _, err := op.Out.Host(); err == nil {
		t.Error("the results of a failed command buffer can be read")
	}
}

// TestMuchWorkIsCommitted: a display's watchdog kills long command buffers, so Run commits what has gathered.
func TestMuchWorkIsCommitted(t *testing.T) {
	b := open(t, Options{Activations: num.Float32})
	buf := newBuffers(t, b)
	x := buf(num.Float32, 4)
	b.Run(addOp(buf, x, x, 4))
	if len(b.pending) != 1 {
		t.Fatalf("%d ops pending after one", len(b.pending))
	}
	b.work = maxWork + 1
	b.Run(addOp(buf, x, x, 4))
	if len(b.pending) != 0 || b.work != 0 {
		t.Errorf("%d ops and %d multiply-adds pending after too much work", len(b.pending), b.work)
	}
}

// TestFailureText needs no device: which op a command buffer's error is laid to.
func TestFailureText(t *testing.T) {
	b, buf := recorder(num.Float32)
	b.Run(addOp(buf, buf(num.Float32, 4), buf(num.Float32, 4), 4))
	b.Run(&engine.SoftCap{Place: engine.Place{In: &engine.Pass{Step: 3, Rows: 1}, Layer: engine.NoLayer, Name: "logits"},
		Out: buf(num.Float32, 4), X: buf(num.Float32, 4), Dim: 4, Cap: 1})
	for i := range b.pending {
		b.pending[i].kernel = &kernel{name: b.pending[i].key.name(num.Float32)}
	}
	cause := errors.New("MTLCommandBufferErrorDomain 2: timeout")
	const want = "step 3 layer 2 layer_out: metal kernel add_f32: one of 2 ops up to step 3 logits (softcap_f32) failed: MTLCommandBufferErrorDomain 2: timeout"
	if err := failure(b.pending, cause); err.Error() != want || !errors.Is(err, cause) {
		t.Errorf("want %q, got %q", want, err)
	}
	if err := failure(b.pending, errors.New("kernel softcap_f32 (softcap.metal:9): out of bounds")); !strings.HasPrefix(err.Error(), "step 3 logits: metal kernel softcap_f32: ") {
		t.Errorf("the kernel is named, but not the op: %q", err)
	}
}

func TestOpenErrors(t *testing.T) {
	open(t, Options{Activations: num.Float32}).Close()
	wanted := errors.New("wanted")
	_, err := Open(Options{Activations: num.Float32, Edit: func(file, source string) (string, error) { return source, wanted }})
	if !errors.Is(err, wanted) || !strings.Contains(err.Error(), "activat") {
		t.Errorf("a failing edit: %v", err)
	}
	_, err = Open(Options{Activations: num.Float32, Edit: func(file, source string) (string, error) {
		return strings.ReplaceAll(source, "precise::rsqrt", "precise::rqsrt"), nil
	}})
	if err == nil || !strings.Contains(err.Error(), "compile layernorm.metal") || !strings.Contains(err.Error(), "rqsrt") {
		t.Errorf("a shader that does not compile: %v", err)
	}
}

// TestRefuse asks nil, which says no to everything, as the oldest of devices would.
func TestRefuse(t *testing.T) {
	open(t, Options{Activations: num.Float32}).Close()
	for want, refuse := range map[string]func(device) error{
		"metal: : want unified memory, the device has none":                refuse,
		"metal: bfloat16 activations: want GPU family Metal3,  has it not": refuseBFloat,
	} {
		var none *UnavailableError
		if err := refuse(device{}); !errors.As(err, &none) || err.Error() != want || none.Hint() == "" {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

func TestInfo(t *testing.T) {
	if info := open(t, Options{Activations: num.BFloat16}).Info(); info.LanguageVersion != "3.1" {
		t.Errorf("bfloat16 activations: %+v", info)
	}
	for _, fast := range []bool{false, true} {
		info := open(t, Options{Activations: num.Float32, FastMath: fast}).Info()
		if info.Device == "" || info.LanguageVersion != "3.0" || info.Family < 7 || info.FastMath != fast || info.Host != (info.Compiler != "") {
			t.Errorf("fast math %t: %+v", fast, info)
		}
		if mode := map[bool]string{false: "safe", true: "fast"}[fast]; info.MathMode != "" && info.MathMode != mode {
			t.Errorf("fast math %t: %+v", fast, info)
		}
	}
}

// TestGELUClamp: 10.5 needs the clamp under fast math, as the shader says; without it tanh is Inf/Inf.
func TestGELUClamp(t *testing.T) {
	x := []float32{10.06, 10.5, -11.6, 65504, -65504, 1, 0, -0.5}
	run := func(o Options) []float32 {
		o.Activations = num.Float32
		b := open(t, o)
		buf := newBuffers(t, b)
		op := &engine.Activate{Place: engine.Place{In: &engine.Pass{Rows: 1}, Name: "act"}, Out: buf(num.Float32, len(x)),
			Gate: buf(num.Float32, len(x)), Dim: len(x), F: engine.GELUTanh}
		host, err := op.Gate.Host()
		if err != nil {
			t.Fatal(err)
		}
		num.PutFloat32s(num.Float32, host, x)
		b.Run(op)
		return floats(t, op.Out)
	}
	const clamp = "clamp(u, -15.0f, 15.0f)"
	unclamped := func(file, source string) (string, error) {
		if n := strings.Count(source, clamp); n != map[bool]int{true: 1}[file == "activation.h"] {
			t.Errorf("%s holds the clamp %d times", file, n)
		}
		return strings.ReplaceAll(source, clamp, "u"), nil
	}
	for _, o := range []Options{{}, {FastMath: true}, {Edit: unclamped}} {
		for i, v := range run(o) {
			x := float64(x[i])
			want := 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
			if !(math.Abs(float64(v)-want) <= 1e-5*math.Abs(x)) { // coarse: the ops' test is fine
				t.Errorf("fast math %t, edited %t: gelu_tanh(%v) is %v, want %v", o.FastMath, o.Edit != nil, x, v, want)
			}
		}
	}
	broken := run(Options{FastMath: true, Edit: unclamped})
	for i, v := range broken {
		if nan := v != v; nan != (x[i] > 10.06) {
			t.Errorf("unclamped under fast math: gelu_tanh(%v) is %v", x[i], v)
		}
	}
}

// TestErf holds GELU to the exact function: 3 ulp of erf near 1 are 3·2⁻²⁴, plus the roundings of 1+erf and of the products.
func TestErf(t *testing.T) {
	const n = 20001
	b := open(t, Options{Activations: num.Float32})
	buf := newBuffers(t, b)
	op := &engine.Activate{Place: engine.Place{In: &engine.Pass{Rows: 1}, Name: "act"}, Out: buf(num.Float32, n), Gate: buf(num.Float32, n), Dim: n, F: engine.GELU}
	host, err := op.Gate.Host()
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		num.PutFloat32(num.Float32, host, i, float32(i-n/2)/1500)
	}
	b.Run(op)
	x := floats(t, op.Gate)
	for i, v := range floats(t, op.Out) {
		erf := math.Erf(float64(x[i]) / math.Sqrt2)
		want := 0.5 * float64(x[i]) * (1 + erf)
		// erf's argument is off by 2 roundings, which its slope times the argument, below 0.49, passes on.
		bound := 0.5 * math.Abs(float64(x[i])) * 0x1p-24 * (3*2*math.Abs(erf) + 2*0.49 + 3*(1+erf) + 1)
		if !(math.Abs(float64(v)-want) <= bound) {
			t.Fatalf("gelu(%v) is %v, want %v ± %.2g", x[i], v, want, bound)
		}
	}
}

// alive counts the host device's living objects by class. There are none to count elsewhere.
func alive(t *testing.T) map[string]int {
	s, err := load()
	if err != nil || !s.host {
		return nil
	}
	objects, err := hostmetal.Alive(s.handles[0])
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// TestNothingLeaks counts living objects before Open and after Close.
func TestNothingLeaks(t *testing.T) {
	open(t, Options{Activations: num.Float32}).Close()
	before := alive(t)
	if before == nil {
		t.Skip("only the host device counts its objects")
	}
	b := open(t, Options{Activations: num.Float16})
	for _, op := range everyOp(num.Float16, 36, newBuffers(t, b)) {
		b.Run(op)
	}
	if err := b.Sync(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Upload(tensor("w", 10, 1)); err != nil {
		t.Fatal(err)
	}
	if maps.Equal(alive(t), before) {
		t.Error("an open backend has no objects: this count could not have failed")
	}
	b.Close()
	if after := alive(t); !maps.Equal(after, before) {
		t.Errorf("objects before Open: %v; after Close: %v", before, after)
	}
	if err := b.Sync(); err != errClosed {
		t.Errorf("a closed backend syncs: %v", err)
	}
}

// TestFailedLeaksNothing: nor does a backend that failed, with command buffers of all kinds on their way.
func TestFailedLeaksNothing(t *testing.T) {
	var fail func(int32)
	hostFunction(t, &fail, "hostmetal_fail_next")
	before := alive(t)
	b := open(t, Options{Activations: num.Float32})
	buf := newBuffers(t, b)
	op := addOp(buf, buf(num.Float32, 4), buf(num.Float32, 4), 4)
	fail(8)
	for range 2 * maxFlying {
		b.Run(op)
		b.Prepare([]engine.Op{op})
	}
	if err := b.Sync(); err == nil {
		t.Error("no failure")
	}
	b.Close()
	if after := alive(t); !maps.Equal(after, before) {
		t.Errorf("objects before Open: %v; after Close: %v", before, after)
	}
}

// TestHostWaits: what Host shows is finished, and what is written there later ops see.
func TestHostWaits(t *testing.T) {
	b := open(t, Options{Activations: num.Float32})
	buf := newBuffers(t, b)
	x, y := buf(num.Float32, 64), buf(num.Float32, 64)
	op := addOp(buf, x, y, 64)
	for round := range 20 {
		host, err := x.Host()
		if err != nil {
			t.Fatal(err)
		}
		copy(host, tensor("", 64, float32(round)).Data)
		b.Run(op)
		b.Run(&engine.Add{Place: op.Place, Out: y, A: op.Out, B: x, Dim: 64}) // y grows by 2·round
		got, err := y.Host()
		if err != nil {
			t.Fatal(err)
		}
		if want := tensor("", 64, float32(round*(round+1))).Data; !bytes.Equal(got, want) {
			t.Fatalf("round %d: y holds %v", round, floats(t, y)[:4])
		}
	}
}
