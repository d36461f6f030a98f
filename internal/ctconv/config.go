package ctconv

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
)

// Config is CTranslate2's config.json (never the original model's). A token that is null or missing is "".
type Config struct {
	BOSToken              string   `json:"bos_token"`
	EOSToken              string   `json:"eos_token"`
	UnkToken              string   `json:"unk_token"`
	LayerNormEpsilon      *float64 `json:"layer_norm_epsilon"` // nil: 1e-5 for norms with a beta, 1e-6 without
	MultiQueryAttention   bool     `json:"multi_query_attention"`
	QuantizationType      int      `json:"quantization_type"` // 0: CTranslate2's own; 1, 2: AWQ
	QuantizationBits      int      `json:"quantization_bits"`
	QuantizationGroupSize int      `json:"quantization_group_size"`
}

// readConfig reads config.json. Binary version 6 keeps the special tokens there, so the file must exist; before,
// model.bin has them, and they win (CTranslate2, src/models/language_model.cc).
func (m *Model) readConfig(dir fs.FS) error {
	const name = "config.json"
	file := path.Join(m.Dir, name)
	data, err := fs.ReadFile(dir, name)
	if errors.Is(err, fs.ErrNotExist) && m.Version < 6 {
		return nil
	} else if errors.Is(err, fs.ErrNotExist) {
		return &Error{File: file, Offset: -1, Err: err, Defect: "want the special tokens and the norms' epsilon, there is no such file"}
	} else if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	config := m.Config
	if err := json.Unmarshal(data, &config); err != nil {
		return jsonError(file, "an object of tokens and numbers", err)
	}
	if m.Version < 6 {
		config.BOSToken, config.EOSToken, config.UnkToken = m.Config.BOSToken, m.Config.EOSToken, m.Config.UnkToken
	}
	m.Config = config
	return nil
}

// jsonError places a JSON error in its file.
func jsonError(file, want string, err error) error {
	e := &Error{File: file, Offset: -1, Err: err, Defect: fmt.Sprintf("want %s: %v", want, err)}
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		e.Offset = syntax.Offset
	case errors.As(err, &kind):
		e.Offset = kind.Offset
		e.Defect = fmt.Sprintf("want %s, %s is of type %s", want, cmp.Or(kind.Field, "a value"), kind.Value)
	}
	return e
}
