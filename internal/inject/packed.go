package inject

import (
	"bytes"
	"compress/flate"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"strings"
	"sync"

	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/sidecarset/operator/internal/hub"
)

// Pack replaces the spec of a SidecarSet by its JSON text, in place: a tree of JSON values
// takes up to ten times as much memory. A long text is compressed. A packed object, and a
// spec that cannot be written, stay as they are.
func Pack(object map[string]any) {
	spec, isObject := object["spec"].(map[string]any)
	if !isObject {
		return
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if encoder.Encode(spec) != nil {
		return
	}
	if text.Len() < worthCompressing {
		object["spec"] = text.String()
		return
	}
	object["spec"] = deflate(text.Bytes())
}

// Unpack returns a SidecarSet with its spec as JSON values: the object itself, if
// it is not packed, or else one that shares all but the spec with it.
func Unpack(object map[string]any) (map[string]any, error) {
	packed, isPacked := object["spec"].(string)
	if !isPacked {
		return object, nil
	}
	text, err := inflate(packed)
	var spec map[string]any
	if err == nil {
		err = utiljson.Unmarshal(text, &spec) // keeps integers
	}
	if err != nil || spec == nil {
		return nil, &FieldError{SidecarSet: hub.NameOf(object), Field: "spec", Err: errors.New("must be an object")}
	}
	unpacked := maps.Clone(object)
	unpacked["spec"] = spec
	return unpacked, nil
}

// SpecOf returns the spec of a SidecarSet, packed or not, as Compile reads it:
// defaulted if it was stored without its webhook.
func SpecOf(object map[string]any) (map[string]any, error) {
	object, err := defaulted(object)
	spec, _ := object["spec"].(map[string]any)
	return spec, err
}

// worthCompressing is a length from which compression saves more than it costs.
const worthCompressing = 4 << 10

// compressedMark is in front of a compressed text. No JSON text begins with it.
const compressedMark = "\x00"

// compressors hold half a megabyte each.
var compressors = sync.Pool{New: func() any {
	w, err := flate.NewWriter(io.Discard, flate.BestSpeed)
	if err != nil { // of a constant
		panic(err)
	}
	return w
}}

func deflate(text []byte) string {
	var out strings.Builder
	out.WriteString(compressedMark)
	w := compressors.Get().(*flate.Writer)
	defer compressors.Put(w)
	w.Reset(&out)
	_, _ = w.Write(text) // a Builder takes everything
	_ = w.Close()
	return strings.Clone(out.String()) // without what the Builder has in reserve
}

func inflate(packed string) ([]byte, error) {
	compressed, isCompressed := strings.CutPrefix(packed, compressedMark)
	if !isCompressed {
		return []byte(packed), nil
	}
	return io.ReadAll(flate.NewReader(strings.NewReader(compressed)))
}

// cloneObject copies JSON values of whatever Go types they have.
func cloneObject(object map[string]any) (map[string]any, error) {
	data, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	var out map[string]any
	if err := utiljson.Unmarshal(data, &out); err != nil {
		return nil, err
	}
	return out, nil
}

func text(object map[string]any, name string) string {
	s, _ := object[name].(string)
	return s
}
