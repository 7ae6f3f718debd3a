package inject

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
)

// patchMetadata carries out patchPodMetadata of the targets in name order, also for
// SidecarSets that bring no container. If a target is enforced, it does so again for the
// SidecarSets that the Pod already has: of two that write one annotation, the last in
// name order has to remain the last.
func (s *selected) patchMetadata(to *podstate.AnnotationEdits) error {
	enforced := slices.ContainsFunc(s.targets, target.isEnforced)
	for i := range s.targets {
		t := &s.targets[i]
		if t.skip != "" && !(enforced && t.takesPart()) {
			continue
		}
		if err := t.PatchAnnotations(to.Get, to.Set); err != nil {
			return err
		}
	}
	return nil
}

// kubectlContainer is the annotation of a Pod from which kubectl knows the container that a
// command is about if the command does not name one.
const kubectlContainer = "kubectl.kubernetes.io/default-container"

// nameDefaultContainer has kubectl take the app's first container, if a SidecarSet that is
// injected now asks for it and no annotation names a container yet.
func (s *selected) nameDefaultContainer(to *podstate.AnnotationEdits) {
	asks := func(t target) bool {
		return t.skip == "" && t.Set.Annotations[appsv1beta1.AnnotationDefaultContainer] == appsv1beta1.DefaultContainerApp
	}
	if _, named := to.Get(kubectlContainer); named || !slices.ContainsFunc(s.targets, asks) {
		return
	}
	isApp := func(v ContainerView) bool { return v.Name != "" && !v.Injected && !s.isSidecar(v.Name) }
	if i := slices.IndexFunc(s.pod.Containers, isApp); i >= 0 {
		to.Set(kubectlContainer, s.pod.Containers[i].Name)
	}
}

// PatchAnnotations carries out patchPodMetadata on the annotations of a Pod, which get reads
// and set writes. It ignores an unknown policy. The error is a *MetadataError.
func (p *Compiled) PatchAnnotations(get func(key string) (string, bool), set func(key, value string)) error {
	for _, rule := range p.metadata {
		for _, key := range rule.keys {
			value, present := get(key)
			switch rule.policy {
			case appsv1beta1.SidecarSetRetainPatchPolicy, "":
				if !present {
					set(key, rule.values[key])
				}
			case appsv1beta1.SidecarSetOverwritePatchPolicy:
				set(key, rule.values[key])
			case appsv1beta1.SidecarSetMergePatchJsonPatchPolicy:
				merged, err := mergeText(value, rule.values[key])
				if err != nil {
					err.SidecarSet, err.Key = p.Name(), key
					return err
				}
				set(key, merged)
			}
		}
	}
	return nil
}

// maxAnnotations is what API servers accept of a Pod.
const maxAnnotations = 256 << 10

// mergeText merges a JSON text into another (RFC 7386). If the Pod has none yet,
// it gets the patch as it is, and merging once more changes nothing.
func mergeText(document, patch string) (string, *MetadataError) {
	if document == "" || document == patch {
		return patch, nil
	}
	if len(document) > maxAnnotations {
		return "", &MetadataError{InPod: true, Err: fmt.Errorf("it has %d bytes, and the annotations of a Pod may have %d together", len(document), maxAnnotations)}
	}
	target, err := parseJSON(document)
	if err != nil {
		return "", &MetadataError{InPod: true, Err: err}
	}
	change, err := parseJSON(patch)
	if err != nil {
		return "", &MetadataError{Err: err}
	}
	merged, err := json.Marshal(merge(target, change)) // sorts keys, escapes HTML
	if err != nil {
		return "", &MetadataError{Err: err}
	}
	return string(merged), nil
}

// merge is MergePatch of RFC 7386. It changes target.
func merge(target, patch any) any {
	changes, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	members, ok := target.(map[string]any)
	if !ok {
		members = make(map[string]any, len(changes))
	}
	for name, value := range changes {
		if value == nil {
			delete(members, name)
			continue
		}
		members[name] = merge(members[name], value)
	}
	return members
}

// parseJSON reads exactly one JSON value and keeps numbers as they are written.
func parseJSON(text string) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one JSON value")
	}
	return value, nil
}
