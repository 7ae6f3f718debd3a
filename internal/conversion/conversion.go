// Package conversion turns SidecarSets of one served version into the other. It works on
// objects as decoded JSON and edits only the members that differ between the versions, so
// members that this build does not know survive. It decides nothing about validity: if a
// member that conversion does not have to read has a wrong value, it passes the value on,
// and validation reports it.
package conversion

import (
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	appsv1alpha1 "github.com/sidecarset/operator/apis/apps/v1alpha1"
	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// Convert returns the SidecarSet in the version that apiVersion names
// ("apps.kruise.io/v1beta1" or "apps.kruise.io/v1alpha1"). The object itself is
// never changed; the result shares with it the parts that are equal in both
// versions, so neither may be edited in place afterwards. An object that has
// the wanted version already is returned as it is.
//
// An error names the object and the member that conversion could not read.
func Convert(object map[string]any, apiVersion string) (map[string]any, error) {
	if kind := object["kind"]; kind != "SidecarSet" {
		return nil, fmt.Errorf("converting %s: kind is %v, want SidecarSet", describe(object), kind)
	}
	if err := CheckDesired(apiVersion); err != nil {
		return nil, fmt.Errorf("converting %s: %w", describe(object), err)
	}
	convert := alphaToBeta
	switch from := object["apiVersion"]; from {
	case apiVersion:
		return object, nil
	case alpha:
	case beta:
		convert = betaToAlpha
	default:
		return nil, fmt.Errorf("converting %s: apiVersion is %v, want %s or %s", describe(object), from, beta, alpha)
	}
	converted, err := convert(object)
	if err != nil {
		return nil, fmt.Errorf("converting %s to %s: %w", describe(object), apiVersion, err)
	}
	return converted, nil
}

// The served versions.
var alpha, beta = appsv1alpha1.GroupVersion.String(), appsv1beta1.GroupVersion.String()

// CheckDesired returns an error unless Convert can produce apiVersion.
func CheckDesired(apiVersion string) error {
	if apiVersion != alpha && apiVersion != beta {
		return fmt.Errorf("unknown desired apiVersion %q, want %s or %s", apiVersion, beta, alpha)
	}
	return nil
}

// alphaToBeta moves spec.namespace into spec.namespaceSelector, where it
// replaces what it finds, and the custom-version label into
// spec.customVersion. If v1alpha1 has a namespaceSelector of the form of a
// namespace, an annotation says so to betaToAlpha.
func alphaToBeta(object map[string]any) (map[string]any, error) {
	e, err := edit(object)
	if err != nil {
		return nil, err
	}
	namespace, err := member[string](e.spec, "namespace", "spec.namespace is not a string")
	if err != nil {
		return nil, err
	}
	version, labelled := e.labels[appsv1beta1.LabelCustomVersion]
	text, isString := version.(string)
	if labelled && !isString {
		return nil, fmt.Errorf("metadata.labels[%s] is not a string", appsv1beta1.LabelCustomVersion)
	}

	delete(e.spec, "namespace")
	delete(e.spec, "customVersion") // unknown to v1alpha1; it must not gain a meaning here
	e.remove("labels", e.labels, appsv1beta1.LabelCustomVersion)
	e.remove("annotations", e.annotations, appsv1beta1.AnnotationAlphaSelector)
	if selected := onlyNamespace(e.spec["namespaceSelector"]); selected != "" && (namespace == "" || namespace == selected) {
		e.annotations[appsv1beta1.AnnotationAlphaSelector] = "true"
	} else if namespace != "" {
		e.spec["namespaceSelector"] = map[string]any{
			"matchLabels": map[string]any{corev1.LabelMetadataName: namespace},
		}
	}
	if text != "" {
		e.spec["customVersion"] = text
	}
	return e.as(beta), nil
}

// betaToAlpha moves spec.customVersion into its label, unless the text is not a valid label
// value: the API server would refuse the converted object, and because of it every list of
// SidecarSets as v1alpha1. If spec.namespaceSelector has the form of a namespace, betaToAlpha
// moves it into spec.namespace, unless the user of v1alpha1 wrote the selector. So a client
// of v1alpha1 that merges its manifest into what it reads finds each member where it wrote it.
// v1alpha1 never has both members: if a client changed one of them, the other one would still
// have the old value.
func betaToAlpha(object map[string]any) (map[string]any, error) {
	e, err := edit(object)
	if err != nil {
		return nil, err
	}
	version, err := member[string](e.spec, "customVersion", "spec.customVersion is not a string")
	if err != nil {
		return nil, err
	}

	delete(e.spec, "customVersion")
	delete(e.spec, "namespace") // unknown to v1beta1; it must not gain a meaning here
	if selected := onlyNamespace(e.spec["namespaceSelector"]); selected != "" && e.annotations[appsv1beta1.AnnotationAlphaSelector] != "true" {
		delete(e.spec, "namespaceSelector")
		e.spec["namespace"] = selected
	}
	e.remove("annotations", e.annotations, appsv1beta1.AnnotationAlphaSelector)
	if version != "" && len(validation.IsValidLabelValue(version)) == 0 {
		e.labels[appsv1beta1.LabelCustomVersion] = version
	}
	return e.as(alpha), nil
}

// onlyNamespace returns the name in a namespaceSelector that alphaToBeta could have made of
// a namespace; "" if the selector has another form.
func onlyNamespace(namespaceSelector any) string {
	selector, _ := namespaceSelector.(map[string]any)
	labels, _ := selector["matchLabels"].(map[string]any)
	if len(selector) != 1 || len(labels) != 1 {
		return ""
	}
	name, _ := labels[corev1.LabelMetadataName].(string)
	return name
}

// edited is a SidecarSet, and copies of the members that conversion edits. The copy of an
// absent member is empty.
type edited struct{ object, metadata, labels, annotations, spec map[string]any }

func edit(object map[string]any) (e edited, err error) {
	e.object = maps.Clone(object)
	if e.metadata, err = copyMember(object, "metadata", "metadata"); err != nil {
		return e, err
	}
	if e.labels, err = copyMember(e.metadata, "labels", "metadata.labels"); err != nil {
		return e, err
	}
	if e.annotations, err = copyMember(e.metadata, "annotations", "metadata.annotations"); err != nil {
		return e, err
	}
	e.spec, err = copyMember(object, "spec", "spec")
	return e, err
}

// remove removes a key of the labels or the annotations. If it was the only one, remove
// removes the member of metadata too, as in the encoding of the Go types.
func (e edited) remove(member string, keys map[string]any, key string) {
	if _, present := keys[key]; !present {
		return
	}
	if delete(keys, key); len(keys) == 0 {
		delete(e.metadata, member)
	}
}

// as puts the parts together.
func (e edited) as(apiVersion string) map[string]any {
	e.object["apiVersion"] = apiVersion
	put(e.metadata, "labels", e.labels)
	put(e.metadata, "annotations", e.annotations)
	put(e.object, "metadata", e.metadata)
	put(e.object, "spec", e.spec)
	return e.object
}

// put sets a member. If the member is absent and value is empty, it stays absent.
func put(object map[string]any, name string, value map[string]any) {
	if len(value) > 0 || object[name] != nil {
		object[name] = value
	}
}

// copyMember returns a shallow copy of an object's member; an empty one where it is
// absent or null.
func copyMember(object map[string]any, name, path string) (map[string]any, error) {
	value, err := member[map[string]any](object, name, path+" is not an object")
	if value == nil {
		return map[string]any{}, err
	}
	return maps.Clone(value), err
}

// member returns a member; the zero value where it is absent or null.
func member[T any](object map[string]any, name, problem string) (value T, err error) {
	value, ok := object[name].(T)
	if !ok && object[name] != nil {
		err = errors.New(problem)
	}
	return value, err
}

// describe names an object in an error. The object may be malformed.
func describe(object map[string]any) string {
	metadata, _ := object["metadata"].(map[string]any)
	if name, ok := metadata["name"].(string); ok && name != "" {
		return "SidecarSet " + name
	}
	return "a SidecarSet without a name"
}
