package ctconv

import (
	"encoding/json"
	"math"
	"strconv"

	"llmrun/internal/num"
)

// Number is a float64 whose JSON form may be "NaN", "Inf" or "-Inf".
type Number float64

// MarshalJSON writes a number, or the name of what is none.
func (n Number) MarshalJSON() ([]byte, error) {
	switch v := float64(n); {
	case math.IsNaN(v):
		return []byte(`"NaN"`), nil
	case math.IsInf(v, 0):
		return json.Marshal(n.String())
	default:
		return json.Marshal(v)
	}
}

// String is short and exact for what was a float32.
func (n Number) String() string {
	switch v := float64(n); {
	case math.IsInf(v, 1):
		return "Inf"
	case math.IsInf(v, -1):
		return "-Inf"
	default:
		return strconv.FormatFloat(v, 'g', -1, 32)
	}
}

// Stats describes the stored values of a tensor. Min, Max, Mean and RMS are of its finite values (integers as they
// are, without their scale); all are NaN if it has none.
type Stats struct {
	Min  Number `json:"min"`
	Max  Number `json:"max"`
	Mean Number `json:"mean"`
	RMS  Number `json:"rms"`
	NaN  int    `json:"nan"`
	Inf  int    `json:"inf"`
}

// Stats reads all of the tensor.
func (t Tensor) Stats() Stats {
	n := t.Elements()
	s := Stats{Min: Number(math.Inf(1)), Max: Number(math.Inf(-1))}
	var sum, squares float64
	for i := range n {
		v := float64(num.Float32At(t.DType, t.Data, i))
		switch {
		case math.IsNaN(v):
			s.NaN++
		case math.IsInf(v, 0):
			s.Inf++
		default:
			sum += v
			squares += v * v
			s.Min, s.Max = min(s.Min, Number(v)), max(s.Max, Number(v))
		}
	}
	finite := float64(n - s.NaN - s.Inf)
	s.Mean, s.RMS = Number(sum/finite), Number(math.Sqrt(squares/finite))
	if finite == 0 {
		s.Min, s.Max = Number(math.NaN()), Number(math.NaN())
	}
	return s
}

// Rows reads rows a to b of a tensor, each of all but its first dimension; a vector has rows of one element.
func (t Tensor) Rows(a, b int) [][]Number {
	length := 1
	if len(t.Shape) > 0 {
		for _, d := range t.Shape[1:] {
			length *= d
		}
	}
	rows := make([][]Number, 0, b-a)
	for r := a; r < b; r++ {
		row := make([]Number, length)
		for i := range row {
			row[i] = Number(num.Float32At(t.DType, t.Data, r*length+i))
		}
		rows = append(rows, row)
	}
	return rows
}
