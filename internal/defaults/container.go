package defaults

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sidecarset/operator/internal/jsonread"
)

func defaultContainer(c node) {
	defaultSidecar(c)
	c.unset("imagePullPolicy", pullPolicy(c.text("image")))
	c.unset("terminationMessagePath", "/dev/termination-log")
	c.unset("terminationMessagePolicy", "File")
	for port := range c.elements("ports") {
		port.unset("protocol", "TCP")
	}
	for env := range c.elements("env") {
		defaultFieldRef(env.child("valueFrom"))
	}
	roundUp(c.child("resources").child("limits"))
	roundUp(c.child("resources").child("requests"))
	// The service of a gRPC probe is not defaulted.
	for _, probe := range []node{c.child("livenessProbe"), c.child("readinessProbe")} {
		defaultHTTPGet(probe)
		probe.unset("timeoutSeconds", int64(1))
		probe.unset("periodSeconds", int64(10))
		probe.unset("successThreshold", int64(1))
		probe.unset("failureThreshold", int64(3))
	}
	defaultStartupProbe(c.child("startupProbe"))
	defaultHTTPGet(c.child("lifecycle").child("postStart"))
	defaultHTTPGet(c.child("lifecycle").child("preStop"))
}

// defaultSidecar fills in what a SidecarSet adds to a container. shareVolumeDevicePolicy
// stays absent: it is newer than stored hashes, which a default would change.
func defaultSidecar(c node) {
	c.ensure("upgradeStrategy").unset("upgradeType", "ColdUpgrade")
	c.ensure("shareVolumePolicy").unset("type", "disabled")
	for transfer := range c.elements("transferEnv") {
		source := transfer.child("sourceContainerNameFrom")
		defaultFieldRef(source)
		source.child("fieldRef").absent("fieldPath", "") // required by the schema, checked later
	}
	policy := c.child("resourcesPolicy")
	policy.unset("targetContainersNameRegex", ".*")
	policy.ensure("resourcesExpr")
}

func defaultFieldRef(source node) { source.child("fieldRef").unset("apiVersion", "v1") }

// defaultStartupProbe fills in what validation demands, and no more. The
// reference defaults nothing in startup probes, so SidecarSets that it stored
// have these three members, and may lack the others: to fill those in would
// change the stored hash, and all Pods would count as outdated. The API server
// fills them in on the Pod.
func defaultStartupProbe(probe node) {
	defaultHTTPGet(probe)
	probe.unset("successThreshold", int64(1))
}

func defaultHTTPGet(handler node) {
	get := handler.child("httpGet")
	get.unset("path", "/")
	get.unset("scheme", "HTTP")
}

// roundUp rounds quantities up to thousandths, the finest unit in which Pods are stored. A
// quantity that needs no rounding stays as the user wrote it.
func roundUp(quantities node) {
	for _, name := range slices.Sorted(maps.Keys(quantities.members)) {
		text := quantityText(quantities.members[name])
		if !jsonread.IsShortQuantity(text) {
			continue // it is refused when the SidecarSet is decoded
		}
		q, err := resource.ParseQuantity(text)
		if err != nil {
			continue
		}
		if exact := q.RoundUp(resource.Milli); !exact {
			quantities.set(name, q.String())
		}
	}
}

// quantityText is a quantity as JSON holds it: a string or a number.
func quantityText(v any) string {
	switch v := v.(type) {
	case string:
		return strings.TrimSpace(v)
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	default: // whole numbers need no rounding
		return ""
	}
}
