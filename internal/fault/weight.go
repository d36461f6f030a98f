package fault

import (
	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
)

// weightFaults misload one tensor of the file.
var weightFaults = []Fault{
	{ID: "weight-shifted-byte", What: "layer 2's up projection is read one byte too late: a header counted wrong",
		Wrap: uploading("decoder/layer_2/ffn/linear_0_noact/weight", func(t ctconv.Tensor, _ map[string]ctconv.Tensor) []byte {
			return shifted(t.Data, 1)
		}), Text: once, Want: misloaded(2, "up", linear)},
	{ID: "weight-shifted-element", What: "layer 2's up projection is read one element too late",
		Wrap: uploading("decoder/layer_2/ffn/linear_0_noact/weight", func(t ctconv.Tensor, _ map[string]ctconv.Tensor) []byte {
			return shifted(t.Data, t.DType.Size())
		}), Text: once, Want: misloaded(2, "up", linear)},
	{ID: "weight-transposed", What: "layer 1's output projection, which is square, is transposed",
		Wrap: uploading("decoder/layer_1/self_attention/linear_1/weight", func(t ctconv.Tensor, _ map[string]ctconv.Tensor) []byte {
			return transposed(t)
		}), Text: once, Want: misloaded(1, "o_proj", linear).because("transposed")},
	{ID: "weight-of-other-layer", What: "layer 3's down projection is layer 2's",
		Wrap: uploading("decoder/layer_3/ffn/linear_1/weight", func(_ ctconv.Tensor, others map[string]ctconv.Tensor) []byte {
			return others["decoder/layer_2/ffn/linear_1/weight"].Data
		}), Text: once, Want: misloaded(3, "down", linear).because("layer 2 down")},
	{ID: "weight-truncated", What: "the second half of layer 5's gate projection is zero: a file cut short",
		Wrap: uploading("decoder/layer_5/ffn/linear_0/weight", secondHalfZero), Text: once, Want: misloaded(5, "gate", linear)},
	{ID: "weight-swapped-blocks", What: "layer 0's fused projection has the keys' rows before the queries'",
		Wrap: uploading("decoder/layer_0/self_attention/linear_0/weight", func(t ctconv.Tensor, _ map[string]ctconv.Tensor) []byte {
			half, quarter := len(t.Data)/2, len(t.Data)/4 // 4 query heads, 2 of keys, 2 of values
			return append(append(append([]byte{}, t.Data[half:half+quarter]...), t.Data[:half]...), t.Data[half+quarter:]...)
		}), Text: once, Want: misloaded(0, qkv, linear)},
	{ID: "weight-sign-lost", What: "one element of the embeddings has lost its sign: a bit of memory is wrong",
		Wrap: uploading("decoder/embeddings/weight", func(t ctconv.Tensor, _ map[string]ctconv.Tensor) []byte {
			data := append([]byte{}, t.Data...)
			data[t.DType.Size()*(339*t.Shape[1]+1)-1] ^= 0x80
			return data
		}), Text: once, Want: misloaded(engine.NoLayer, embed, engine.FamilyEmbed).healedBy("")},
}

// shifted is data from byte n on, with zeros behind.
func shifted(data []byte, n int) []byte {
	return append(append([]byte{}, data[n:]...), make([]byte, n)...)
}

func transposed(t ctconv.Tensor) []byte {
	rows, cols, size := t.Shape[0], t.Shape[1], t.DType.Size()
	out := make([]byte, len(t.Data))
	for r := range rows {
		for c := range cols {
			copy(out[(c*rows+r)*size:][:size], t.Data[(r*cols+c)*size:])
		}
	}
	return out
}

func secondHalfZero(t ctconv.Tensor, _ map[string]ctconv.Tensor) []byte {
	half := len(t.Data) / 2
	return append(append([]byte{}, t.Data[:half]...), make([]byte, len(t.Data)-half)...)
}
