package metal

import "unsafe"

// minimumMacOS is the oldest system that has all methods below but the newer ones, and MSL 3.0.
const minimumMacOS = 13.0

// The selectors in use, with the class or protocol that declares each. A test holds this table to Apple's headers (testdata/metal-api.tsv).
var (
	msgAlloc       = declare[func(id, sel) id]("NSObject", "alloc")
	msgInit        = declare[func(id, sel) id]("NSObject", "init")
	msgRetain      = declare[func(id, sel) id]("NSObject", "retain")
	msgRelease     = declare[func(id, sel)]("NSObject", "release")
	msgRespondsTo  = declare[func(id, sel, sel) bool]("NSObject", "respondsToSelector:")
	msgInitString  = declare[func(id, sel, unsafe.Pointer, uint, uint) id]("NSString", "initWithBytes:length:encoding:")
	msgUTF8String  = declare[func(id, sel) *byte]("NSString", "UTF8String")
	msgErrorCode   = declare[func(id, sel) int]("NSError", "code")
	msgErrorDomain = declare[func(id, sel) id]("NSError", "domain")
	msgErrorText   = declare[func(id, sel) id]("NSError", "localizedDescription")
	msgCount       = declare[func(id, sel) uint]("NSArray", "count")
	msgObjectAt    = declare[func(id, sel, uint) id]("NSArray", "objectAtIndex:")

	msgDeviceName     = declare[func(id, sel) id]("MTLDevice", "name")
	msgUnifiedMemory  = declare[func(id, sel) bool]("MTLDevice", "hasUnifiedMemory")
	msgMaxBuffer      = declare[func(id, sel) uint]("MTLDevice", "maxBufferLength")
	msgWorkingSet     = declare[func(id, sel) uint]("MTLDevice", "recommendedMaxWorkingSetSize")
	msgAllocated      = declare[func(id, sel) uint]("MTLDevice", "currentAllocatedSize")
	msgSupportsFamily = declare[func(id, sel, int) bool]("MTLDevice", "supportsFamily:")
	msgNewQueue       = declare[func(id, sel) id]("MTLDevice", "newCommandQueue")
	msgNewBuffer      = declare[func(id, sel, uint, uint) id]("MTLDevice", "newBufferWithLength:options:")
	msgNewLibrary     = declare[func(id, sel, id, id, *id) id]("MTLDevice", "newLibraryWithSource:options:error:")
	msgNewPipeline    = declare[func(id, sel, id, *id) id]("MTLDevice", "newComputePipelineStateWithFunction:error:")

	msgSetLanguage  = declare[func(id, sel, uint)]("MTLCompileOptions", "setLanguageVersion:")
	msgLanguage     = declare[func(id, sel) uint]("MTLCompileOptions", "languageVersion")
	msgSetFastMath  = declare[func(id, sel, bool)]("MTLCompileOptions", "setFastMathEnabled:")
	msgFastMath     = declare[func(id, sel) bool]("MTLCompileOptions", "fastMathEnabled")
	msgSetMathMode  = declareNewer[func(id, sel, int)]("MTLCompileOptions", "setMathMode:")
	msgMathMode     = declareNewer[func(id, sel) int]("MTLCompileOptions", "mathMode")
	msgSetFunctions = declareNewer[func(id, sel, int)]("MTLCompileOptions", "setMathFloatingPointFunctions:")
	msgFunctions    = declareNewer[func(id, sel) int]("MTLCompileOptions", "mathFloatingPointFunctions")

	msgNewFunction    = declare[func(id, sel, id) id]("MTLLibrary", "newFunctionWithName:")
	msgMaxThreads     = declare[func(id, sel) uint]("MTLComputePipelineState", "maxTotalThreadsPerThreadgroup")
	msgExecutionWidth = declare[func(id, sel) uint]("MTLComputePipelineState", "threadExecutionWidth")

	msgCommandBuffer  = declare[func(id, sel) id]("MTLCommandQueue", "commandBuffer")
	msgComputeEncoder = declare[func(id, sel) id]("MTLCommandBuffer", "computeCommandEncoder")
	msgCommit         = declare[func(id, sel)]("MTLCommandBuffer", "commit")
	msgWait           = declare[func(id, sel)]("MTLCommandBuffer", "waitUntilCompleted")
	msgStatus         = declare[func(id, sel) uint]("MTLCommandBuffer", "status")
	msgBufferError    = declare[func(id, sel) id]("MTLCommandBuffer", "error")

	msgSetPipeline     = declare[func(id, sel, id)]("MTLComputeCommandEncoder", "setComputePipelineState:")
	msgSetBuffer       = declare[func(id, sel, id, uint, uint)]("MTLComputeCommandEncoder", "setBuffer:offset:atIndex:")
	msgSetBytes        = declare[func(id, sel, unsafe.Pointer, uint, uint)]("MTLComputeCommandEncoder", "setBytes:length:atIndex:")
	msgDispatchThreads = declare[func(id, sel, size, size)]("MTLComputeCommandEncoder", "dispatchThreads:threadsPerThreadgroup:")
	msgEndEncoding     = declare[func(id, sel)]("MTLCommandEncoder", "endEncoding")
	msgSetLabel        = declare[func(id, sel, id)]("MTLCommandEncoder", "setLabel:")

	msgContents = declare[func(id, sel) unsafe.Pointer]("MTLBuffer", "contents")
	msgLength   = declare[func(id, sel) uint]("MTLBuffer", "length")

	msgMatrixDescriptor = declare[func(id, sel, uint, uint, uint, uint32) id]("MPSMatrixDescriptor", "matrixDescriptorWithRows:columns:rowBytes:dataType:")
	msgInitMatrix       = declare[func(id, sel, id, uint, id) id]("MPSMatrix", "initWithBuffer:offset:descriptor:")
	msgInitProduct      = declare[func(id, sel, id, bool, bool, uint, uint, uint, float64, float64) id]("MPSMatrixMultiplication",
		"initWithDevice:transposeLeft:transposeRight:resultRows:resultColumns:interiorColumns:alpha:beta:")
	msgEncodeProduct = declare[func(id, sel, id, id, id, id)]("MPSMatrixMultiplication", "encodeToCommandBuffer:leftMatrix:rightMatrix:resultMatrix:")
)
