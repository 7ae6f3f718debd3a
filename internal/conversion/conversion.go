// Package conversion turns SidecarSets of one served version into the other.
// It works on objects as decoded JSON and edits only the members that differ
// between the versions, so whatever this build does not know about survives.
// It decides nothing about validity: a wrong value in a member that conversion
// does not have to read is passed on for validation to report.
package conversion

import (
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
	edit, err := conversionTo(object["apiVersion"], apiVersion)
	if err != nil {
		return nil, fmt.Errorf("converting %s: %w", describe(object), err)
	}
	if edit == nil {
		return object, nil
	}
	converted, err := edit(object)
	if err != nil {
		return nil, fmt.Errorf("converting %s to %s: %w", describe(object), apiVersion, err)
	}
	return converted, nil
}

// ToV1beta1 is Convert to the hub, for callers that work on it alone.
func ToV1beta1(object map[string]any) (map[string]any, error) {
	return Convert(object, appsv1beta1.GroupVersion.String())
}

// CheckDesired returns an error unless Convert can produce apiVersion.
func CheckDesired(apiVersion string) error {
	alpha, beta := appsv1alpha1.GroupVersion.String(), appsv1beta1.GroupVersion.String()
	if apiVersion != alpha && apiVersion != beta {
		return fmt.Errorf("unknown desired apiVersion %q, want %s or %s", apiVersion, beta, alpha)
	}
	return nil
}

// conversionTo picks the function for a pair of versions; nil if they are equal.
func conversionTo(from any, to string) (func(map[string]any) (map[string]any, error), error) {
	if err := CheckDesired(to); err != nil {
		return nil, err
	}
	alpha, beta := appsv1alpha1.GroupVersion.String(), appsv1beta1.GroupVersion.String()
	switch {
	case from == to:
		return nil, nil
	case from == alpha:
		return alphaToBeta, nil
	case from == beta:
		return betaToAlpha, nil
	default:
		return nil, fmt.Errorf("apiVersion is %v, want %s or %s", from, beta, alpha)
	}
}

// alphaToBeta moves spec.namespace into spec.namespaceSelector, where it
// replaces what it finds, and the custom-version label into
// spec.customVersion.
func alphaToBeta(object map[string]any) (map[string]any, error) {
	metadata, labels, spec, err := copyEdited(object)
	if err != nil {
		return nil, err
	}
	namespace, err := stringMember(spec, "namespace", "spec.namespace")
	if err != nil {
		return nil, err
	}
	version, labelled := labels[appsv1beta1.LabelCustomVersion]
	text, isString := version.(string)
	if labelled && !isString {
		return nil, fmt.Errorf("metadata.labels[%s] is not a string", appsv1beta1.LabelCustomVersion)
	}

	delete(spec, "namespace")
	delete(spec, "customVersion") // unknown to v1alpha1; it must not gain a meaning here
	if namespace != "" {
		spec = ensure(spec)
		spec["namespaceSelector"] = map[string]any{
			"matchLabels": map[string]any{corev1.LabelMetadataName: namespace},
		}
	}
	if text != "" {
		spec = ensure(spec)
		spec["customVersion"] = text
	}
	if labelled {
		delete(labels, appsv1beta1.LabelCustomVersion)
		setLabels(metadata, labels)
	}
	return assemble(object, appsv1beta1.GroupVersion.String(), metadata, spec), nil
}

// betaToAlpha moves spec.customVersion into its label, unless it cannot be a
// label's value: the API server would refuse what we return, and with this one
// object every list of SidecarSets as v1alpha1. spec.namespace is not
// reconstructed: a namespaceSelector stays what it is.
func betaToAlpha(object map[string]any) (map[string]any, error) {
	metadata, labels, spec, err := copyEdited(object)
	if err != nil {
		return nil, err
	}
	version, err := stringMember(spec, "customVersion", "spec.customVersion")
	if err != nil {
		return nil, err
	}

	delete(spec, "customVersion")
	delete(spec, "namespace") // unknown to v1beta1; it must not gain a meaning here
	if version != "" && len(validation.IsValidLabelValue(version)) == 0 {
		labels = ensure(labels)
		labels[appsv1beta1.LabelCustomVersion] = version
		metadata = ensure(metadata)
		setLabels(metadata, labels)
	}
	return assemble(object, appsv1alpha1.GroupVersion.String(), metadata, spec), nil
}

// assemble returns a copy of object with the given version and the given
// metadata and spec where there are any.
func assemble(object map[string]any, apiVersion string, metadata, spec map[string]any) map[string]any {
	converted := maps.Clone(object)
	converted["apiVersion"] = apiVersion
	if metadata != nil {
		converted["metadata"] = metadata
	}
	if spec != nil {
		converted["spec"] = spec
	}
	return converted
}

// copyEdited returns copies of what conversion edits: metadata, its labels, and the
// spec; nil where one is absent.
func copyEdited(object map[string]any) (metadata, labels, spec map[string]any, err error) {
	if metadata, err = copyMember(object, "metadata", "metadata"); err != nil {
		return nil, nil, nil, err
	}
	if labels, err = copyMember(metadata, "labels", "metadata.labels"); err != nil {
		return nil, nil, nil, err
	}
	spec, err = copyMember(object, "spec", "spec")
	return metadata, labels, spec, err
}

// setLabels puts edited labels into metadata; empty ones are left out, as Go's
// types would.
func setLabels(metadata, labels map[string]any) {
	if len(labels) == 0 {
		delete(metadata, "labels")
		return
	}
	metadata["labels"] = labels
}

// copyMember returns a shallow copy of an object's member; nil where it is
// absent or null.
func copyMember(object map[string]any, name, path string) (map[string]any, error) {
	switch value := object[name].(type) {
	case nil:
		return nil, nil
	case map[string]any:
		return maps.Clone(value), nil
	default:
		return nil, fmt.Errorf("%s is not an object", path)
	}
}

// stringMember returns a string; "" where it is absent or null.
func stringMember(object map[string]any, name, path string) (string, error) {
	switch value := object[name].(type) {
	case nil:
		return "", nil
	case string:
		return value, nil
	default:
		return "", fmt.Errorf("%s is not a string", path)
	}
}

func ensure(object map[string]any) map[string]any {
	if object == nil {
		return map[string]any{}
	}
	return object
}

// describe names an object in an error; it has to cope with anything.
func describe(object map[string]any) string {
	metadata, _ := object["metadata"].(map[string]any)
	if name, ok := metadata["name"].(string); ok && name != "" {
		return "SidecarSet " + name
	}
	return "a SidecarSet without a name"
}
