package validation_test

import (
	"strings"
	"testing"

	"github.com/sidecarset/operator/internal/validation"
)

func TestUpdateStrategyRefuses(t *testing.T) {
	const at = "spec.updateStrategy."
	tests := map[string]struct {
		strategy string
		want     []string
	}{
		"rule 17: selector and a number":         {`selector: {matchLabels: {a: b}}, partition: 1`, []string{"selector: Invalid: must not be set together with partition; remove one of them"}},
		"rule 17, T19: selector and 0%":          {`selector: {matchLabels: {a: b}}, partition: 0%`, []string{"selector: Invalid: must not be set together with partition"}},
		"rule 18: an empty selector":             {`selector: {}`, []string{"selector: Invalid: empty selector is not valid; add matchLabels or matchExpressions"}},
		"rule 18: an operator":                   {`selector: {matchExpressions: [{key: a, operator: Like}]}`, []string{"selector.matchExpressions[0].operator: Invalid: not a valid selector operator; use In"}},
		"rule 19: negative numbers":              {`partition: -1, maxUnavailable: -1`, []string{"partition: Invalid: must be 0 or more", "maxUnavailable: Invalid: must be 0 or more"}},
		"rule 19: a percentage without bounds":   {`partition: 99999999999999999999%, maxUnavailable: 99999999999999999999%`, []string{"partition: Invalid: must be a whole number or a percentage such as 10%", "maxUnavailable: Invalid: must be a whole number"}},
		"rule 19: what is no percentage":         {`partition: "1", maxUnavailable: "-1%"`, []string{"partition: Invalid: must be a whole number or a percentage such as 10%", "maxUnavailable: Invalid: must be a whole number"}},
		"rule 20: weight and order":              {`priorityStrategy: {weightPriority: [{weight: 1, matchSelector: {matchLabels: {a: b}}}], orderPriority: [{orderedKey: a}]}`, []string{"priorityStrategy.weightPriority: Forbidden: must not be set together with orderPriority; remove one of them"}},
		"rule 21: weights":                       {`priorityStrategy: {weightPriority: [{weight: -1, matchSelector: {matchLabels: {a: b}}}, {weight: 101, matchSelector: {matchLabels: {a: b}}}]}`, []string{"priorityStrategy.weightPriority[0].weight: Invalid: must be from 0 to 100", "priorityStrategy.weightPriority[1].weight: Invalid: must be from 0 to 100"}},
		"rule 22, 9.3: no matchSelector":         {`priorityStrategy: {weightPriority: [{weight: 1}]}`, []string{"priorityStrategy.weightPriority[0].matchSelector: Required: say which Pods the weight is about"}},
		"rule 22: a matchSelector that is none":  {`priorityStrategy: {weightPriority: [{weight: 1, matchSelector: {matchLabels: {a: "b c"}}}]}`, []string{"priorityStrategy.weightPriority[0].matchSelector.matchLabels: Invalid: a valid label must be"}},
		"rule 23: no orderedKey":                 {`priorityStrategy: {orderPriority: [{}]}`, []string{"priorityStrategy.orderPriority[0].orderedKey: Required: name a label"}},
		"rule 24: no key":                        {`scatterStrategy: [{value: a}]`, []string{"scatterStrategy[0].key: Required: name a label"}},
		"rule 24: one term twice":                {`scatterStrategy: [{key: a, value: b}, {key: a, value: c}, {key: a, value: b}]`, []string{"scatterStrategy[2]: Duplicate: another term is the same; remove one"}},
		"rule 19: 101% passes, with a warning":   {`partition: 101%, maxUnavailable: 0`, nil},
		"rule 17: selector beside partition 0":   {`selector: {matchLabels: {a: b}}, partition: 0`, nil},
		"rule 21: weights 0 and 100":             {`priorityStrategy: {weightPriority: [{weight: 0, matchSelector: {matchLabels: {a: b}}}, {weight: 100, matchSelector: {matchLabels: {a: b}}}]}`, nil},
		"9.3: a scatter term without value":      {`scatterStrategy: [{key: a}]`, nil},
		"rules 17 to 24 are about RollingUpdate": {`type: NotUpdate, selector: {}, partition: x, maxUnavailable: -1, scatterStrategy: [{}], priorityStrategy: {orderPriority: [{}]}`, nil},
		"T19: with NotUpdate everything goes":    {`type: NotUpdate, selector: {matchLabels: {a: b}}, partition: 50%`, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var want []string
			for _, line := range tc.want {
				want = append(want, at+line)
			}
			set := validationCase{spec: `updateStrategy: {` + tc.strategy + `}`}.set(t)
			expect(t, want, validation.Create(set, validation.Environment{}))
		})
	}
}

func TestRevision(t *testing.T) {
	const at = "spec.injectionStrategy.revision"
	tests := map[string]struct {
		revision string
		recorded bool
		want     string
	}{
		"rule 14: no name":                        {`{policy: Always}`, false, at + ": Invalid: names no revision; set revisionName or customVersion, or remove it"},
		"rule 15: an unknown name":                {`{revisionName: r}`, false, at + ".revisionName: Invalid: cannot find ControllerRevision"},
		"rule 15, T17: an unknown version":        {`{customVersion: v}`, false, at + ".customVersion: Invalid: cannot find ControllerRevision"},
		"rule 16: a policy":                       {`{revisionName: r, policy: Maybe}`, true, at + `.policy: NotSupported: supported values: "Always", "Partial"`},
		"rule 15: the name wins over the version": {`{revisionName: r, customVersion: v}`, false, at + ".revisionName: Invalid"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			set := validationCase{spec: `injectionStrategy: {revision: ` + tc.revision + `}`}.set(t)
			errs := validation.Create(set, validation.Environment{Recorded: tc.recorded})
			expect(t, []string{tc.want}, errs[:min(1, len(errs))])
		})
	}
}

func TestSidecarsRefuse(t *testing.T) {
	const hot = `upgradeStrategy: {upgradeType: HotUpgrade, hotUpgradeEmptyImage: e}`
	long := strings.Repeat("a", 62)
	from := func(ref string) string {
		return `containers: [{name: a, image: b, transferEnv: [{envName: x, sourceContainerNameFrom: {fieldRef: ` + ref + `}}]}]`
	}
	const ref = "spec.containers[0].transferEnv[0].sourceContainerNameFrom.fieldRef."
	tests := map[string]validationCase{
		"rule 30: no fieldPath":                    {spec: from(`{}`), want: []string{ref + "fieldPath: Required: name a label or annotation"}},
		"rule 31: another apiVersion":              {spec: from(`{apiVersion: v2, fieldPath: "metadata.labels['a']"}`), want: []string{ref + "apiVersion: Invalid: must be v1"}},
		"rule 31, T39: metadata.name":              {spec: from(`{fieldPath: metadata.name}`), want: []string{ref + "fieldPath: Invalid: error converting fieldPath: only metadata.labels"}},
		"rule 32: a key that is none":              {spec: from(`{fieldPath: "metadata.labels['a b']"}`), want: []string{ref + "fieldPath: Invalid: name part must consist of"}},
		"rule 32: an annotation's key in capitals": {spec: from(`{fieldPath: "metadata.annotations['A.B/C']"}`)},
		"T25: no empty image":                      {spec: `containers: [{name: a, image: b, upgradeStrategy: {upgradeType: HotUpgrade}}]`, want: []string{"spec.containers[0].upgradeStrategy.hotUpgradeEmptyImage: Required: name the image that the idle container of the hot-upgrade pair runs"}},
		"T25: a name that becomes too long":        {spec: `containers: [{name: ` + long + `, image: b, ` + hot + `}]`, want: []string{"spec.containers[0].name: Invalid: is too long for a hot upgrade"}},
		"T25: a name that a pair has":              {spec: `{initContainers: [{name: m-2, image: b}], containers: [{name: m, image: b, ` + hot + `}, {name: m-1, image: b}]}`, want: []string{"spec.containers[0].name: Invalid: HotUpgrade injects it as m-1, which is another container", "spec.containers[0].name: Invalid: HotUpgrade injects it as m-2"}},
		"T25: a pair that wants one port":          {spec: `containers: [{name: m, image: b, ` + hot + `, ports: [{containerPort: 1, hostPort: 9}]}]`, want: []string{"spec.containers[0].ports[0].hostPort: Invalid: HotUpgrade injects two containers, which cannot share a port of the node"}},
		"T25: a native pair without image":         {spec: `initContainers: [{name: m, image: b, restartPolicy: Always, upgradeStrategy: {upgradeType: HotUpgrade}}]`, want: []string{"spec.initContainers[0].upgradeStrategy.hotUpgradeEmptyImage: Required: name the image that the idle container of the hot-upgrade pair runs"}},
		"an init container that ends is no pair":   {spec: `initContainers: [{name: m, image: b, upgradeStrategy: {upgradeType: HotUpgrade}}, {name: m-1, image: b}]`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			expect(t, tc.want, validation.Create(tc.set(t), validation.Environment{}))
		})
	}
	t.Run("rule 30: no apiVersion", func(t *testing.T) {
		set := validationCase{spec: from(`{fieldPath: "metadata.labels['a']"}`)}.set(t)
		set.Spec.Containers[0].TransferEnv[0].SourceContainerNameFrom.FieldRef.APIVersion = ""
		expect(t, []string{ref + "apiVersion: Required: set it to v1"}, validation.Create(set, validation.Environment{}))
	})
}
