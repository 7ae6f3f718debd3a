// Package hub reads SidecarSets of either served version as objects of the hub
// version, v1beta1. If a value has the wrong type, it finds the member that has it.
// It fills in no defaults by itself and checks no rule.
package hub

import (
	"encoding/json"
	"errors"
	"fmt"

	jsonv2 "github.com/go-json-experiment/json"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	appsv1alpha1 "github.com/sidecarset/operator/apis/apps/v1alpha1"
	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/conversion"
	"github.com/sidecarset/operator/internal/defaults"
)

// Object is a SidecarSet as JSON in the version in which it was sent, with members that this
// build does not know. The result of Hub may share them.
type Object map[string]any

// SidecarSet is a SidecarSet of the hub version, in two forms with the same fields: as
// JSON, with members that this build does not know, and as our type.
type SidecarSet struct {
	Object map[string]any
	Set    *appsv1beta1.SidecarSet
}

// Read decodes a SidecarSet of a version that the operator serves.
func Read(text []byte) (Object, error) {
	if len(text) == 0 {
		return nil, errors.New("the request holds no object")
	}
	var object map[string]any
	if err := utiljson.Unmarshal(text, &object); err != nil {
		return nil, fmt.Errorf("reading the object of the request: %w", err)
	}
	if kind := object["kind"]; kind != appsv1beta1.Kind.Kind {
		return nil, fmt.Errorf("unexpected kind: %v, want SidecarSet", kind)
	}
	switch object["apiVersion"] {
	case appsv1alpha1.GroupVersion.String(), appsv1beta1.GroupVersion.String():
		return object, nil
	}
	return nil, unsupportedVersion(object["apiVersion"])
}

func unsupportedVersion(apiVersion any) error {
	name := fmt.Sprint(apiVersion)
	if gv, err := schema.ParseGroupVersion(name); err == nil && gv.Group == appsv1beta1.GroupVersion.Group {
		name = gv.Version
	}
	return fmt.Errorf("unsupported version: %s; use v1beta1 or v1alpha1 of %s", name, appsv1beta1.GroupVersion.Group)
}

// Describe is how messages call the object.
func (o Object) Describe() string { return fmt.Sprintf("SidecarSet %q", NameOf(o)) }

// NameOf returns the name of an object, "" if it has none.
func NameOf(object map[string]any) string {
	metadata, _ := object["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	return name
}

// Default fills in the defaults of a SidecarSet that may have been stored without
// its webhook.
func (o Object) Default() { defaults.Apply(o) }

// Hub returns the object in the hub version. An error names the object, and the
// member whose value has the wrong type.
func (o Object) Hub() (*SidecarSet, error) {
	hub, err := conversion.Convert(o, appsv1beta1.GroupVersion.String())
	if err != nil {
		return nil, err // names the object and the member
	}
	set, err := Typed(hub)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.Describe(), err)
	}
	return &SidecarSet{hub, set}, nil
}

// Typed decodes an object of the hub version. It ignores members that our types do
// not know. If a value has the wrong type, the error is a *MemberError.
//
// The decoder parses quantities, so they are bounded first. Typed decodes the object, not
// the text that a client sent, because that text may name a member twice.
func Typed(object map[string]any) (*appsv1beta1.SidecarSet, error) {
	if err := boundQuantities(object); err != nil {
		return nil, err
	}
	text, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	set := &appsv1beta1.SidecarSet{}
	if err := jsonv2.Unmarshal(text, set); err != nil { // its errors say where
		return nil, located(err)
	}
	return set, nil
}
