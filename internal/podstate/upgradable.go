package podstate

import (
	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/jsonread"
)

// Upgradable is what a Pod's condition SidecarSetUpgradable says about a
// SidecarSet.
type Upgradable uint8

// What the condition can say.
const (
	Unsaid Upgradable = iota
	IsUpgradable
	NotUpgradable
)

// upgradableOf reads the condition's message, {"<SidecarSet>":true|false}. An unreadable
// message has no values.
func upgradableOf(pod *corev1.Pod) map[string]Upgradable {
	c := inplace.Condition(pod, appsv1beta1.PodConditionUpgradable)
	if c == nil || c.Message == "" || !readable(c.Message) {
		return nil
	}
	said, count := map[string]Upgradable{}, 0
	for name, raw := range jsonread.Members(c.Message) {
		if count++; count > maxEntries {
			return nil
		}
		switch raw {
		case "true":
			said[name] = IsUpgradable
		case "false":
			said[name] = NotUpgradable
		}
	}
	return said
}
