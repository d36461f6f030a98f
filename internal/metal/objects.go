package metal

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// object is a borrowed reference: it lives as long as its owner, or as the autorelease pool of the present job.
type object struct{ id id }

func (o object) isNil() bool { return o.id == 0 }

func (o object) respondsTo(s sel) bool { return msgRespondsTo.call(o.id, msgRespondsTo.sel, s) }

// retain makes a reference of one's own.
func (o object) retain() owned { return owned{object{msgRetain.call(o.id, msgRetain.sel)}} }

// owned is a reference that somebody must release.
type owned struct{ object }

func (o owned) release() { msgRelease.call(o.id, msgRelease.sel) }

// allocate is alloc: one reference, to be handed to an init method.
func allocate(className string) owned {
	c := getClass(className)
	if c == 0 {
		panic("BUG: no class " + className)
	}
	return owned{object{msgAlloc.call(id(c), msgAlloc.sel)}}
}

// nsString is an NSString made from a Go string.
type nsString struct{ owned }

const utf8Encoding = 4 // NSUTF8StringEncoding

func newString(s string) nsString {
	o := allocate("NSString")
	p := unsafe.Pointer(unsafe.StringData(s))
	return nsString{owned{object{msgInitString.call(o.id, msgInitString.sel, p, uint(len(s)), utf8Encoding)}}}
}

// goString copies a borrowed NSString.
func goString(s id) string {
	if s == 0 {
		return ""
	}
	return unix.BytePtrToString(msgUTF8String.call(s, msgUTF8String.sel))
}

// nsError copies an NSError, whose life ends with the pool.
func nsError(e id) error {
	if e == 0 {
		return nil
	}
	domain := goString(msgErrorDomain.call(e, msgErrorDomain.sel))
	code := msgErrorCode.call(e, msgErrorCode.sel)
	text := goString(msgErrorText.call(e, msgErrorText.sel))
	if domain == commandErrorDomain {
		return &CommandError{code, text}
	}
	return fmt.Errorf("%s %d: %s", domain, code, text)
}

// nsArray is an NSArray of which one has a reference.
type nsArray struct{ owned }

// devices gives all devices.
func devices() nsArray { return nsArray{owned{object{copyAllDevices()}}} }

func (a nsArray) count() uint { return msgCount.call(a.id, msgCount.sel) }

// at gives element i < count.
func (a nsArray) at(i uint) object { return object{msgObjectAt.call(a.id, msgObjectAt.sel, i)} }

// device is an MTLDevice.
type device struct{ owned }

const (
	familyApple   = 1000            // MTLGPUFamilyApple1 is 1001, and so on
	familyApple7  = familyApple + 7 // M1
	familyMetal3  = 5001            // MTLGPUFamilyMetal3
	storageShared = 0               // MTLResourceStorageModeShared
)

func (d device) name() string           { return goString(msgDeviceName.call(d.id, msgDeviceName.sel)) }
func (d device) hasUnifiedMemory() bool { return msgUnifiedMemory.call(d.id, msgUnifiedMemory.sel) }
func (d device) supportsFamily(f int) bool {
	return msgSupportsFamily.call(d.id, msgSupportsFamily.sel, f)
}

// maxBufferLength, workingSet (the recommended most) and allocated (by this process) are in bytes.
func (d device) maxBufferLength() int { return int(msgMaxBuffer.call(d.id, msgMaxBuffer.sel)) }
func (d device) workingSet() int      { return int(msgWorkingSet.call(d.id, msgWorkingSet.sel)) }
func (d device) allocated() int       { return int(msgAllocated.call(d.id, msgAllocated.sel)) }

func (d device) newQueue() commandQueue {
	return commandQueue{owned{object{msgNewQueue.call(d.id, msgNewQueue.sel)}}}
}

// newBuffer gives n > 0 bytes of shared memory, or nil.
func (d device) newBuffer(n int) mtlBuffer {
	return mtlBuffer{owned{object{msgNewBuffer.call(d.id, msgNewBuffer.sel, uint(n), storageShared)}}}
}

// newLibrary compiles MSL. The error may be a warning: the library tells.
func (d device) newLibrary(source string, o compileOptions) (library, error) {
	text := newString(source)
	defer text.release()
	var e id
	lib := library{owned{object{msgNewLibrary.call(d.id, msgNewLibrary.sel, text.id, o.id, &e)}}}
	return lib, nsError(e)
}

func (d device) newPipeline(f function) (pipeline, error) {
	var e id
	p := pipeline{owned{object{msgNewPipeline.call(d.id, msgNewPipeline.sel, f.id, &e)}}}
	return p, nsError(e)
}

// compileOptions is an MTLCompileOptions.
type compileOptions struct{ owned }

func newCompileOptions() compileOptions {
	o := allocate("MTLCompileOptions")
	return compileOptions{owned{object{msgInit.call(o.id, msgInit.sel)}}}
}

func (o compileOptions) setLanguageVersion(v uint) { msgSetLanguage.call(o.id, msgSetLanguage.sel, v) }
func (o compileOptions) languageVersion() uint     { return msgLanguage.call(o.id, msgLanguage.sel) }
func (o compileOptions) setFastMath(fast bool)     { msgSetFastMath.call(o.id, msgSetFastMath.sel, fast) }
func (o compileOptions) fastMath() bool            { return msgFastMath.call(o.id, msgFastMath.sel) }

// hasMathMode tells whether the system knows the four methods below, which came with macOS 15.
func (o compileOptions) hasMathMode() bool {
	return o.respondsTo(msgSetMathMode.sel) && o.respondsTo(msgMathMode.sel) &&
		o.respondsTo(msgSetFunctions.sel) && o.respondsTo(msgFunctions.sel)
}
func (o compileOptions) setMathMode(m int)  { msgSetMathMode.call(o.id, msgSetMathMode.sel, m) }
func (o compileOptions) mathMode() int      { return msgMathMode.call(o.id, msgMathMode.sel) }
func (o compileOptions) setFunctions(f int) { msgSetFunctions.call(o.id, msgSetFunctions.sel, f) }
func (o compileOptions) functions() int     { return msgFunctions.call(o.id, msgFunctions.sel) }

// library is an MTLLibrary.
type library struct{ owned }

// newFunction gives a kernel, or nil if the library has none of that name.
func (l library) newFunction(name string) function {
	s := newString(name)
	defer s.release()
	return function{owned{object{msgNewFunction.call(l.id, msgNewFunction.sel, s.id)}}}
}

// function is an MTLFunction.
type function struct{ owned }

// pipeline is an MTLComputePipelineState.
type pipeline struct{ owned }

func (p pipeline) maxThreads() uint     { return msgMaxThreads.call(p.id, msgMaxThreads.sel) }
func (p pipeline) executionWidth() uint { return msgExecutionWidth.call(p.id, msgExecutionWidth.sel) }

// commandQueue is an MTLCommandQueue.
type commandQueue struct{ owned }

// commandBuffer gives a command buffer that lives as long as the job's pool.
func (q commandQueue) commandBuffer() commandBuffer {
	return commandBuffer{object{msgCommandBuffer.call(q.id, msgCommandBuffer.sel)}}
}

// commandBuffer is an MTLCommandBuffer.
type commandBuffer struct{ object }

const statusCompleted = 4 // MTLCommandBufferStatusCompleted

// computeEncoder gives a serial encoder: each dispatch sees what those before it wrote.
func (b commandBuffer) computeEncoder() encoder {
	return encoder{object{msgComputeEncoder.call(b.id, msgComputeEncoder.sel)}}
}
func (b commandBuffer) commit()      { msgCommit.call(b.id, msgCommit.sel) }
func (b commandBuffer) wait()        { msgWait.call(b.id, msgWait.sel) }
func (b commandBuffer) status() uint { return msgStatus.call(b.id, msgStatus.sel) }
func (b commandBuffer) error() error { return nsError(msgBufferError.call(b.id, msgBufferError.sel)) }

// encoder is an MTLComputeCommandEncoder.
type encoder struct{ object }

func (e encoder) setLabel(label nsString) { msgSetLabel.call(e.id, msgSetLabel.sel, label.id) }
func (e encoder) setPipeline(p pipeline)  { msgSetPipeline.call(e.id, msgSetPipeline.sel, p.id) }

// setBuffer binds the buffer from byte offset on, which must be a multiple of the element's size.
func (e encoder) setBuffer(b mtlBuffer, offset uint, index int) {
	msgSetBuffer.call(e.id, msgSetBuffer.sel, b.id, offset, uint(index))
}

// setBytes copies p, 1 to 4095 bytes, at once.
func (e encoder) setBytes(p []byte, index int) {
	msgSetBytes.call(e.id, msgSetBytes.sel, unsafe.Pointer(unsafe.SliceData(p)), uint(len(p)), uint(index))
}
func (e encoder) dispatchThreads(grid, group size) {
	msgDispatchThreads.call(e.id, msgDispatchThreads.sel, grid, group)
}
func (e encoder) endEncoding() { msgEndEncoding.call(e.id, msgEndEncoding.sel) }

// mtlBuffer is an MTLBuffer.
type mtlBuffer struct{ owned }

func (b mtlBuffer) length() int { return int(msgLength.call(b.id, msgLength.sel)) }

// contents is the memory itself, good until the release. Only buffer.go may look at it, and only between command buffers.
func (b mtlBuffer) contents() []byte {
	return unsafe.Slice((*byte)(msgContents.call(b.id, msgContents.sel)), b.length())
}

// matrix is an MPSMatrix: rows of a buffer, one after another without gaps.
type matrix struct{ owned }

// newMatrix gives a view of rows times cols elements of size bytes each, from byte offset of b on.
func newMatrix(b mtlBuffer, offset uint, rows, cols, size int, dataType uint32) matrix {
	d := msgMatrixDescriptor.call(id(getClass("MPSMatrixDescriptor")), msgMatrixDescriptor.sel, uint(rows), uint(cols), uint(cols*size), dataType)
	return matrix{owned{object{msgInitMatrix.call(allocate("MPSMatrix").id, msgInitMatrix.sel, b.id, offset, d)}}}
}

// multiplication is an MPSMatrixMultiplication.
type multiplication struct{ owned }

// newMultiplication gives result = left · rightᵀ, with a result of rows times cols and sums of inner products; or nil.
func newMultiplication(d device, rows, cols, inner int) multiplication {
	o := allocate("MPSMatrixMultiplication")
	return multiplication{owned{object{msgInitProduct.call(o.id, msgInitProduct.sel, d.id, false, true, uint(rows), uint(cols), uint(inner), 1, 0)}}}
}

// encode writes the multiplication into b, with an encoder of its own: none may be open.
func (m multiplication) encode(b commandBuffer, left, right, result matrix) {
	msgEncodeProduct.call(m.id, msgEncodeProduct.sel, b.id, left.id, right.id, result.id)
}
