package inject_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
)

// record is sections 5.8 and 5.10, with what a Pod may bring.
func (m *model) record(out *corev1.Pod) {
	withImage, without := readHashes(out.Annotations["kruise.io/sidecarset-hash"]), readHashes(out.Annotations["kruise.io/sidecarset-hash-without-image"])
	working := map[string]string{}
	if json.Unmarshal([]byte(out.Annotations["kruise.io/sidecarset-working-hotupgrade-container"]), &working) != nil {
		working = map[string]string{}
	}
	names := strings.FieldsFunc(out.Annotations["kruise.io/sidecarset-injected-list"], func(r rune) bool { return r == ',' })
	pairs := false
	for _, s := range m.sets {
		names = append(names, s.name)
		list := []string{}
		for _, c := range s.content.Spec.Containers {
			list = append(list, c.Name)
			pairs = m.recordPair(out, &c, working) || pairs
		}
		for _, c := range s.content.Spec.InitContainers {
			if c.RestartPolicy != nil && *c.RestartPolicy == "Always" {
				list = append(list, c.Name)
				pairs = m.recordPair(out, &c, working) || pairs
			}
		}
		slices.Sort(list)
		entry := map[string]any{"updateTimestamp": metav1.NewTime(fixtures.Now).UTC().Format(time.RFC3339), "sidecarSetName": s.name, "sidecarList": list, "hash": s.compiled.HashWithoutImage}
		without[s.name] = entry
		with := maps.Clone(entry)
		with["hash"] = s.compiled.Hash
		if s.revision != "" {
			with["controllerRevision"] = s.revision
		}
		withImage[s.name] = with
	}
	slices.Sort(names)
	out.Annotations["kruise.io/sidecarset-injected-list"] = strings.Join(slices.Compact(names), ",")
	out.Annotations["kruise.io/sidecarset-hash"] = text(withImage)
	out.Annotations["kruise.io/sidecarset-hash-without-image"] = text(without)
	if pairs {
		out.Annotations["kruise.io/sidecarset-working-hotupgrade-container"] = text(working)
	}
}

func (m *model) recordPair(out *corev1.Pod, c *appsv1beta1.SidecarContainer, working map[string]string) bool {
	if c.UpgradeStrategy.UpgradeType != "HotUpgrade" {
		return false
	}
	working[c.Name] = c.Name + "-1"
	for name, value := range map[string]string{"version": "1", "versionalt": "0"} {
		out.Annotations[name+".sidecarset.kruise.io/"+c.Name+"-1"] = value
		out.Annotations[name+".sidecarset.kruise.io/"+c.Name+"-2"] = map[string]string{"1": "0", "0": "1"}[value]
	}
	return true
}

func (m *model) recordChoices(out *corev1.Pod) {
	choices := map[string]string{}
	for _, s := range m.sets {
		if s.choice != "" {
			choices[s.name] = s.choice
		}
	}
	if len(choices) > 0 {
		out.Annotations["sidecarset.io/revision-choice"] = text(choices)
	}
}

// readHashes reads the struct form and the legacy form.
func readHashes(annotation string) map[string]any {
	entries := map[string]any{}
	if json.Unmarshal([]byte(annotation), &entries) != nil {
		return map[string]any{}
	}
	for name, entry := range entries {
		if hash, legacy := entry.(string); legacy {
			entries[name] = map[string]any{"updateTimestamp": nil, "hash": hash, "sidecarSetName": name, "sidecarList": nil}
		}
	}
	return entries
}

func text(v any) string {
	data, _ := json.Marshal(v)
	return string(data)
}
