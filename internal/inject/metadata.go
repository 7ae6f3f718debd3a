package inject

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// patchMetadata carries out patchPodMetadata of the targets in name order, also for
// SidecarSets that bring no container. If a target is enforced, it does so again for the
// SidecarSets that the Pod already carries: of two that write one annotation, the last in
// name order has to remain the last.
func (c *computation) patchMetadata() error {
	enforced := slices.ContainsFunc(c.targets, target.disbelieves)
	for i := range c.targets {
		t := &c.targets[i]
		if t.skip != "" && !(enforced && t.takesPart()) {
			continue
		}
		for _, rule := range t.metadata {
			if err := c.patchAnnotations(t.Name(), rule); err != nil {
				return err
			}
		}
	}
	return nil
}

// patchAnnotations carries out one entry. It ignores an unknown policy.
func (c *computation) patchAnnotations(sidecarSet string, rule metadataRule) error {
	for _, key := range rule.keys {
		value, present := c.annotation(key)
		switch rule.policy {
		case appsv1beta1.SidecarSetRetainPatchPolicy, "":
			if !present {
				c.annotate(key, rule.values[key])
			}
		case appsv1beta1.SidecarSetOverwritePatchPolicy:
			c.annotate(key, rule.values[key])
		case appsv1beta1.SidecarSetMergePatchJsonPatchPolicy:
			merged, err := mergeText(value, rule.values[key])
			if err != nil {
				err.SidecarSet, err.Key = sidecarSet, key
				return err
			}
			c.annotate(key, merged)
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
