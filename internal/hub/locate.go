package hub

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// MemberError names the member that keeps a SidecarSet from being decoded.
type MemberError struct {
	Path string // "" is the object itself
	// Err says what is wrong with the value, in the words of JSON.
	Err error
}

func (e *MemberError) Error() string {
	return strings.TrimPrefix(e.Path+": ", ": ") + e.Err.Error() + "; correct it"
}

func (e *MemberError) Unwrap() error { return e.Err }

// located translates a decoder's error.
func located(err error) error {
	mismatch, is := errors.AsType[*jsonv2.SemanticError](err)
	if !is {
		return &MemberError{"", err}
	}
	var path *field.Path
	for name := range mismatch.JSONPointer.Tokens() {
		if i, err := strconv.Atoi(name); err == nil && path != nil {
			path = path.Index(i)
		} else {
			path = path.Child(name)
		}
	}
	if path == nil { // the object itself
		return &MemberError{"", explain(mismatch)}
	}
	return &MemberError{path.String(), explain(mismatch)}
}

var kindNames = map[jsontext.Kind]string{'{': "object", '[': "array", 't': "bool", 'f': "bool", '"': "string", '0': "number", 'n': "null"}

// explain translates from the words of Go to the words of JSON.
func explain(e *jsonv2.SemanticError) error {
	if own, is := errors.AsType[*json.UnmarshalTypeError](e.Err); is { // a type that decodes itself
		return fmt.Errorf("must be %s, not %s", wanted(own.Type), own.Value)
	}
	if e.Err != nil && e.GoType != nil && wanted(e.GoType) == "an object" {
		return e.Err
	}
	return fmt.Errorf("must be %s, not %s", wanted(e.GoType), kindNames[e.JSONKind])
}

func wanted(typ reflect.Type) string {
	switch typ.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int32, reflect.Int64, reflect.Int:
		return "a whole number that fits into " + typ.Kind().String()
	case reflect.Slice:
		return "a list"
	}
	return "an object"
}
