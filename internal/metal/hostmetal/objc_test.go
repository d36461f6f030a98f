package hostmetal

import (
	"maps"
	"os"
	"os/exec"
	"strings"
	"testing"
	"unsafe"
)

func TestRetainCounts(t *testing.T) {
	metal(t)
	live := objc.live()
	s := send(objc.class("NSString"), "alloc")
	s = objc.bytes(s, objc.sel("initWithBytes:length:encoding:"), unsafe.Pointer(unsafe.StringData("x")), 1, 4)
	if send(s, "retain") != s || count(s, "retainCount") != 2 || objc.live() != live+1 {
		t.Errorf("retain count %d, %d live objects more", count(s, "retainCount"), objc.live()-live)
	}
	outer := objc.push()
	send(s, "autorelease")
	inner := objc.push()
	send(send(s, "retain"), "autorelease")
	if count(s, "retainCount") != 3 {
		t.Errorf("retain count %d in the pools", count(s, "retainCount"))
	}
	objc.pop(inner)
	if count(s, "retainCount") != 2 {
		t.Errorf("retain count %d after the inner pool", count(s, "retainCount"))
	}
	objc.push() // popped with the outer one
	send(send(s, "retain"), "autorelease")
	objc.pop(outer)
	if count(s, "retainCount") != 1 {
		t.Errorf("retain count %d after the pools", count(s, "retainCount"))
	}
	release(s)
	if objc.live() != live {
		t.Errorf("%d objects more than before", objc.live()-live)
	}
}

// What is not released is counted by class.
func TestAlive(t *testing.T) {
	g := newGPU(t, saxpy, precise)
	before := objc.alive()
	b := objc.two(g.device, objc.sel("newBufferWithLength:options:"), 4, 0)
	pool := objc.push()
	send(g.queue, "commandBuffer") // which holds its queue
	after := objc.alive()
	if after["MTLBuffer"] != before["MTLBuffer"]+1 || after["MTLCommandBuffer"] != before["MTLCommandBuffer"]+1 {
		t.Errorf("before %v, with one buffer and one command buffer more %v", before, after)
	}
	objc.pop(pool)
	release(b)
	if after := objc.alive(); !maps.Equal(after, before) {
		t.Errorf("before %v, at the end %v", before, after)
	}
}

func TestMessages(t *testing.T) {
	metal(t)
	if count(0, "length") != 0 || objc.double(0, objc.sel("GPUStartTime")) != 0 {
		t.Error("a message to nil answers")
	}
	first := objc.sel("release")
	if again := objc.sel("release"); again != first || first == objc.sel("retain") {
		t.Error("selectors are not unique")
	}
	for name, known := range map[string]bool{"NSString": true, "NSObject": true, "MTLCompileOptions": true, "MTLDevice": false, "NSPort": false} {
		if (objc.class(name) != 0) != known {
			t.Errorf("class %s known: %v", name, !known)
		}
	}
	d := objc.device()
	defer release(d)
	for name, want := range map[string]bool{"newCommandQueue": true, "release": true, "length": false, "neverHeardOf:": false} {
		if got := objc.sendUint(d, objc.sel("respondsToSelector:"), uint64(objc.sel(name)))&0xff != 0; got != want {
			t.Errorf("respondsToSelector:%s is %v", name, got)
		}
	}
	if s := text(send(d, "description")); !strings.HasPrefix(s, "<MTLDevice: 0x") {
		t.Errorf("description %q", s)
	}
}

func TestString(t *testing.T) {
	metal(t)
	for s, length := range map[string]uint64{"": 0, "abc": 3, "naïve": 5, "日本": 2, "𝄞!": 3, "a\x00b": 3} {
		o := str(s)
		if got := count(o, "length"); got != length {
			t.Errorf("%q has length %d, want %d", s, got, length)
		}
		if got, _, _ := strings.Cut(s, "\x00"); text(o) != got {
			t.Errorf("%q came back as %q", s, text(o))
		}
	}
	for _, s := range []string{"\xff", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe6\x97", "ab\x80"} {
		if str(s) != 0 {
			t.Errorf("%q is no UTF-8, yet a string", s)
		}
	}
}

// Each misuse ends the process with the words in want.
var misuses = map[string]struct {
	want string
	do   func(g *gpu)
}{
	"selector":     {"-[MTLDevice neverHeardOf]: unrecognized selector sent to instance", func(g *gpu) { send(g.device, "neverHeardOf") }},
	"class method": {"+[NSString neverHeardOf]: unrecognized selector sent to class", func(g *gpu) { send(objc.class("NSString"), "neverHeardOf") }},
	"index": {"index 1 beyond bounds for array of 1", func(g *gpu) {
		objc.sendUint(objc.devices(), objc.sel("objectAtIndex:"), 1)
	}},
	"dead": {"message sent to deallocated instance", func(g *gpu) {
		b := objc.two(g.device, objc.sel("newBufferWithLength:options:"), 4, 0)
		release(b)
		count(b, "length")
	}},
	"pool": {"invalid pool token", func(g *gpu) {
		p := objc.push()
		objc.pop(p)
		objc.pop(p)
	}},
	"commit twice": {"commit an already committed command buffer", func(g *gpu) {
		cb := g.encode()
		objc.sendVoid(cb, objc.sel("commit"))
		objc.sendVoid(cb, objc.sel("commit"))
	}},
	"open encoder": {"commit command buffer with uncommitted encoder", func(g *gpu) {
		cb := send(g.queue, "commandBuffer")
		send(cb, "computeCommandEncoder")
		objc.sendVoid(cb, objc.sel("commit"))
	}},
	"two encoders": {"A command encoder is already encoding to this command buffer", func(g *gpu) {
		cb := send(g.queue, "commandBuffer")
		send(cb, "computeCommandEncoder")
		send(cb, "computeCommandEncoder")
	}},
	"ended": {"encoding after endEncoding", func(g *gpu) {
		e := send(send(g.queue, "commandBuffer"), "computeCommandEncoder")
		objc.sendVoid(e, objc.sel("endEncoding"))
		objc.two(e, objc.sel("setThreadgroupMemoryLength:atIndex:"), 16, 0)
	}},
	"not ended": {"Command encoder released without endEncoding", func(g *gpu) {
		p := objc.push()
		send(send(g.queue, "commandBuffer"), "computeCommandEncoder")
		objc.pop(p)
	}},
	"wait": {"the command buffer was not committed", func(g *gpu) { objc.sendVoid(g.encode(), objc.sel("waitUntilCompleted")) }},
	"uncommitted": {"64 command buffers of this queue are uncommitted", func(g *gpu) {
		for range 65 {
			send(g.queue, "commandBuffer")
		}
	}},
	"missing buffer": {"missing Buffer binding at index 1 for x[0]", func(g *gpu) {
		g.encode(command{"saxpy", line(1), line(1), 0, []any{buffer(g, []float32{1})}})
	}},
	"short bytes": {"argument args[0] from Buffer(2) with offset(0) has space for 4 bytes, but argument has a length(8)", func(g *gpu) {
		b := buffer(g, []float32{1})
		g.encode(command{"saxpy", line(1), line(1), 0, []any{b, b, uint32(1)}})
	}},
	"group size": {"threadsPerThreadgroup.width(2048)", func(g *gpu) {
		b := buffer(g, []float32{1})
		g.encode(command{"saxpy", line(1), line(2048), 0, []any{b, b, []uint32{1, 1}}})
	}},
	"empty grid": {"the grid (0, 1, 1) must be positive", func(g *gpu) {
		b := buffer(g, []float32{1})
		g.encode(command{"saxpy", line(0), line(1), 0, []any{b, b, []uint32{1, 1}}})
	}},
	"offset": {"must be a multiple of 4", func(g *gpu) {
		cb := send(g.queue, "commandBuffer")
		e := send(cb, "computeCommandEncoder")
		objc.sendID(e, objc.sel("setComputePipelineState:"), g.pipeline("saxpy"))
		b := buffer(g, make([]float32, 4))
		objc.buffer(e, objc.sel("setBuffer:offset:atIndex:"), b, 2, 0)
		objc.buffer(e, objc.sel("setBuffer:offset:atIndex:"), b, 0, 1)
		objc.buffer(e, objc.sel("setBuffer:offset:atIndex:"), b, 0, 2)
		objc.dispatch(e, objc.sel("dispatchThreadgroups:threadsPerThreadgroup:"), line(1), line(1))
	}},
	"past the end": {"offset(4) must be < [buffer length](4)", func(g *gpu) {
		e := send(send(g.queue, "commandBuffer"), "computeCommandEncoder")
		objc.buffer(e, objc.sel("setBuffer:offset:atIndex:"), buffer(g, []float32{1}), 4, 0)
	}},
	"buffer index": {"index(31) must be < 31", func(g *gpu) {
		e := send(send(g.queue, "commandBuffer"), "computeCommandEncoder")
		objc.buffer(e, objc.sel("setBuffer:offset:atIndex:"), buffer(g, []float32{1}), 0, 31)
	}},
	"threadgroup memory": {"must be a multiple of 16 bytes", func(g *gpu) {
		e := send(send(g.queue, "commandBuffer"), "computeCommandEncoder")
		objc.two(e, objc.sel("setThreadgroupMemoryLength:atIndex:"), 17, 0)
	}},
	"released twice": {"-[release]: message sent to deallocated instance", func(g *gpu) {
		b := objc.two(g.device, objc.sel("newBufferWithLength:options:"), 4, 0)
		release(b)
		release(b)
	}},
	"untracked": {"MTLResourceHazardTrackingModeUntracked is not served", func(g *gpu) {
		objc.two(g.device, objc.sel("newBufferWithLength:options:"), 4, 256)
	}},
	"extra buffer": {"Compute Function(saxpy): the function has no argument at index 3, which was set for it.", func(g *gpu) {
		b := validated(g)
		g.encode(command{"saxpy", line(1), line(1), 0, []any{b, b, []uint32{1, 0}, b}})
	}},
	"long bytes": {"argument args[0] from setBytes at index 2 has 12 bytes, but argument has a length(8).", func(g *gpu) {
		b := validated(g)
		g.encode(command{"saxpy", line(1), line(1), 0, []any{b, b, []uint32{1, 0, 0}}})
	}},
	"read in flight": {"-[MTLBuffer contents]: at byte 4 of a buffer of 256 bytes, logits, the CPU uses the contents while a committed command buffer that nobody has seen completed writes them", func(g *gpu) {
		y := inFlight(g, validated(g))
		g.t.Log(contents[float32](y, 64)[1])
	}},
	"written in flight": {"-[MTLBuffer contents]: at byte 8 of a buffer of 256 bytes, without a label, the CPU changes the contents while a committed command buffer that nobody has seen completed reads them", func(g *gpu) {
		x := validated(g)
		inFlight(g, x)
		if contents[float32](x, 64)[2] != 0 { // reading is allowed
			g.t.Fatal("not zero")
		}
		contents[float32](x, 64)[2] = 1
	}},
	"outside in Go": {"-[MTLBuffer contents]: at byte 256 of a buffer of 256 bytes, without a label, the CPU leaves the contents", func(g *gpu) {
		contents[float32](validated(g), 65)[64] = 1
	}},
	"too much threadgroup memory": {"threadgroup memory of 40000 bytes exceeds 32768", func(g *gpu) {
		e := send(send(g.queue, "commandBuffer"), "computeCommandEncoder")
		objc.two(e, objc.sel("setThreadgroupMemoryLength:atIndex:"), 20000, 0)
		objc.two(e, objc.sel("setThreadgroupMemoryLength:atIndex:"), 20000, 1)
		b := buffer(g, []float32{1})
		g.dispatch(e, command{"saxpy", line(1), line(1), 0, []any{b, b, []uint32{1, 0}}})
	}},
	"no pipeline": {"A compute pipeline state must be set", func(g *gpu) {
		e := send(send(g.queue, "commandBuffer"), "computeCommandEncoder")
		objc.dispatch(e, objc.sel("dispatchThreadgroups:threadsPerThreadgroup:"), line(1), line(1))
	}},
}

// validated turns the checked mode on, and makes a buffer of 64 floats.
func validated(g *gpu) id {
	objc.validate(true, 0)
	return buffer(g, make([]float32, 64))
}

// inFlight commits a command that reads x, nobody waits for it, and the buffer labelled logits that it writes is returned.
func inFlight(g *gpu, x id) id {
	y := buffer(g, make([]float32, 64))
	objc.sendID(y, objc.sel("setLabel:"), str("logits"))
	objc.sendVoid(g.encode(command{"saxpy", line(64), line(64), 0, []any{y, x, []uint32{64, 0}}}), objc.sel("commit"))
	return y
}

// The process of a misuse is this test again, with the misuse's name in the environment.
func TestMisuse(t *testing.T) {
	const variable = "HOSTMETAL_TEST_MISUSE"
	if name := os.Getenv(variable); name != "" {
		misuses[name].do(newGPU(t, saxpy, precise))
		t.Fatal("nothing happened")
	}
	needRestart(t)
	metal(t)
	for name, m := range misuses {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestMisuse$")
			cmd.Env = append(os.Environ(), variable+"="+name, "GOTRACEBACK=none")
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), m.want) {
				t.Errorf("got %v and %.500s, want %q", err, out, m.want)
			}
		})
	}
}
