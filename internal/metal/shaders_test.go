package metal

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"llmrun/internal/engine"
	"llmrun/internal/num"
	"llmrun/shaders"
)

// shader is what the tests need of a .metal file: the kernel's parameters bound to buffers by index, its
// args struct, and the names of its instances.
type shader struct {
	parameters []string // "name" by buffer index
	argsName   string
	argsFields []string // "type name"
	instances  map[string]bool
}

var (
	structText   = regexp.MustCompile(`struct (\w+Args) \{ (.*?) \};`)
	kernelText   = regexp.MustCompile(`(?s)\[\[kernel\]\] void (\w+)\((.*?)\) \{`)
	bufferText   = regexp.MustCompile(`(\w+) \[\[buffer\((\d+)\)\]\]`)
	instanceText = regexp.MustCompile(`template \[\[host_name\("(\w+)"\)\]\] \[\[kernel\]\] decltype\((\w+<[^>]*>)\) (\w+<[^>]*>);`)
)

func readShaders(t *testing.T) map[string]shader {
	t.Helper()
	all := map[string]shader{}
	for _, file := range shaders.Files() {
		text, err := shaders.Source(file, nil)
		if err != nil {
			t.Fatal(err)
		}
		structs, kernels := structText.FindAllStringSubmatch(text, -1), kernelText.FindAllStringSubmatch(text, -1)
		if len(structs) != 1 || len(kernels) != 1 || kernels[0][1]+".metal" != file {
			t.Fatalf("%s: want one args struct and one kernel of the file's name, found %d and %d", file, len(structs), len(kernels))
		}
		s := shader{argsName: structs[0][1], instances: map[string]bool{}}
		for _, group := range strings.Split(strings.TrimSuffix(structs[0][2], ";"), ";") {
			kind, names, _ := strings.Cut(strings.TrimSpace(group), " ")
			for _, name := range strings.Split(names, ",") {
				s.argsFields = append(s.argsFields, kind+" "+strings.TrimSpace(name))
			}
		}
		for i, p := range bufferText.FindAllStringSubmatch(kernels[0][2], -1) {
			if p[2] != fmt.Sprint(i) {
				t.Errorf("%s: parameter %s has index %s, is number %d", file, p[1], p[2], i)
			}
			s.parameters = append(s.parameters, p[1])
		}
		for _, m := range instanceText.FindAllStringSubmatch(text, -1) {
			if m[2] != m[3] {
				t.Errorf("%s: instance %s declares %s as %s", file, m[1], m[3], m[2])
			}
			s.instances[m[1]] = true
		}
		all[strings.TrimSuffix(file, ".metal")] = s
	}
	return all
}

// TestArgs compares the args structs as Go and as Metal spell them.
func TestArgs(t *testing.T) {
	kinds := map[reflect.Kind]string{reflect.Uint32: "uint", reflect.Float32: "float"}
	all := readShaders(t)
	args := []any{embedArgs{}, layerNormArgs{}, rmsNormArgs{}, linearArgs{}, gemmArgs{}, ropeArgs{}, kvWriteArgs{}, scoresArgs{}, softmaxArgs{}, contextArgs{},
		activateArgs{}, addArgs{}, addBiasArgs{}, softCapArgs{}, attentionArgs{}, residualArgs{}, ropeKVArgs{}, normRopeKVArgs{}, gateUpArgs{}, quantizeArgs{}, linearI8Args{}}
	if len(args) != len(all) {
		t.Errorf("%d args structs for %d shaders", len(args), len(all))
	}
	for _, a := range args {
		var fields []string
		typ := reflect.TypeOf(a)
		for i := range typ.NumField() {
			fields = append(fields, kinds[typ.Field(i).Type.Kind()]+" "+typ.Field(i).Name)
		}
		found := false
		for file, s := range all {
			if strings.EqualFold(s.argsName, typ.Name()) {
				found = true
				if !reflect.DeepEqual(fields, s.argsFields) {
					t.Errorf("%s: Go has %q, %s.metal has %q", typ.Name(), fields, file, s.argsFields)
				}
			}
		}
		if !found {
			t.Errorf("no shader has %s", typ.Name())
		}
		if n := typ.Size(); n > maxArgs {
			t.Errorf("%s: %d bytes, a dispatch holds %d", typ.Name(), n, maxArgs)
		}
	}
}

// recorder is a backend without a device that only writes down.
func recorder(activations num.DType) (*Backend, func(num.DType, int) engine.Buffer) {
	b := &Backend{activations: activations}
	var made id
	return b, func(d num.DType, n int) engine.Buffer {
		made++
		return &buffer{b, mtlBuffer{owned{object{made}}}, 0, d, n, make([]byte, n*d.Size())}
	}
}

// TestBufferOrder runs every op on the recorder and compares what it binds, index by index, with the operands whose names the
// kernel's parameters bear, and with their first elements.
func TestBufferOrder(t *testing.T) {
	all, seen := readShaders(t), map[string]bool{}
	for _, activations := range []num.DType{num.Float32, num.Float16, num.BFloat16} {
		b, buf := recorder(activations)
		q, inverse := buf(num.Int8, 1<<10).(*buffer), buf(num.Float32, 1<<10).(*buffer)
		b.quantizer.q, b.quantizer.inverse = room{slot{mtl: q.mtl}, 1 << 10}, room{slot{mtl: inverse.mtl}, 1 << 10}
		for _, op := range everyOp(activations, 36, buf) {
			b.pending = b.pending[:0] // an Embed syncs what is pending
			b.Run(op)
			out, in := op.Operands(nil, nil)
			operands, taken := map[string]engine.Operand{}, map[string]bool{}
			for _, o := range append(out, in...) {
				operands[o.Name] = o
			}
			if l, ok := op.(*engine.Linear); ok && l.Quantized { // what one of its kernels leaves for the other
				operands["q"], operands["inverse"] = engine.Operand{Buffer: q}, engine.Operand{Buffer: inverse}
			}
			for _, d := range b.pending {
				bound(t, all, op, &d, activations, operands, taken)
				seen[d.key.name(activations)] = true
			}
			for o := range operands {
				if !taken[o] {
					t.Errorf("%T: %s does not take %s", op, b.pending[0].key.name(activations), o)
				}
			}
		}
	}
	for file, s := range all {
		if slices.ContainsFunc(fusedKernels, func(f engine.Fusion) bool { return f.Name == file }) { // see fuse_test.go
			continue
		}
		for name := range s.instances {
			if !seen[name] && s.argsName != "AddBiasArgs" { // which follows a product of MPS: see mps_test.go
				t.Errorf("no op runs %s", name)
			}
		}
	}
}

// bound compares what a dispatch of op binds with the operands, and notes which those are.
func bound(t *testing.T, all map[string]shader, op engine.Op, d *dispatch, activations num.DType, operands map[string]engine.Operand, taken map[string]bool) {
	t.Helper()
	name, s := d.key.name(activations), all[d.key.shader]
	if !s.instances[name] {
		t.Errorf("%T: %s.metal has no kernel %s", op, d.key.shader, name)
	}
	if n := len(s.parameters); n != d.slotCount+1 || s.parameters[n-1] != "args" {
		t.Fatalf("%T binds %d buffers and args, %s takes %q", op, d.slotCount, name, s.parameters)
	}
	if d.argsLen != 4*len(s.argsFields) {
		t.Errorf("%T: %d bytes of args, %s has %d fields of 4", op, d.argsLen, name, len(s.argsFields))
	}
	for i, p := range s.parameters[:d.slotCount] {
		o, ok := operands[p]
		if !ok { // an absent scale, bias, positions or up: bound to what stands before it
			o = operands[map[string]string{"scale": "w", "bias": "w", "positions": "w", "up": "gate"}[p]]
		}
		m := o.Buffer.(*buffer)
		if d.slots[i].mtl != m.mtl {
			t.Errorf("%T: index %d is %s, bound to another buffer", op, i, p)
		}
		if want := uint(o.Offset * m.dtype.Size()); d.slots[i].offset != want {
			t.Errorf("%T: %s begins at byte %d, bound from %d", op, p, want, d.slots[i].offset)
		}
		taken[p] = true
	}
}
