package validation_test

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/defaults"
	"github.com/sidecarset/operator/internal/validation"
)

// The spec of a case replaces members of this one.
const validSpec = `
selector: {matchLabels: {app: web}}
containers: [{name: a, image: "b:1"}]
updateStrategy: {type: NotUpdate}
`

const allowAll = `{"rules":[{"allowedAnnotationKeyExprs":["."]}]}`

type validationCase struct {
	name     string // default log
	metadata string // replaces members of {name: …}
	spec     string
	want     []string // "path: Type: what the detail contains"
}

func TestCreateRefuses(t *testing.T) {
	tests := map[string]validationCase{
		"rule 1: a namespace":                   {metadata: `namespace: x`, want: []string{"metadata.namespace: Forbidden: not allowed on this type"}},
		"rule 1: a bad label":                   {metadata: `labels: {a: "b c"}`, want: []string{"metadata.labels: Invalid: a valid label must be an empty string or consist of"}},
		"rule 1: a bad annotation key":          {metadata: `annotations: {"a b": c}`, want: []string{"metadata.annotations: Invalid: name part must consist of"}},
		"rule 2: a dot in the name":             {name: "a.b", want: []string{"metadata.name: Invalid: must consist of letters, digits and '-' only; choose another name"}},
		"rule 3: a name of 64 characters":       {name: strings.Repeat("a", 64), want: []string{"metadata.name: Invalid: must be no more than 63 characters; choose a shorter name"}},
		"rules 2 and 3: a generated name":       {metadata: `generateName: a.b`, want: []string{"metadata.generateName: Invalid: must consist of"}},
		"rule 10: no selector":                  {spec: `selector: null`, want: []string{"spec.selector: Required: say which Pods to inject"}},
		"rule 11: an operator":                  {spec: `selector: {matchExpressions: [{key: a, operator: Like}]}`, want: []string{"spec.selector.matchExpressions[0].operator: Invalid: not a valid selector operator; use In, NotIn, Exists or DoesNotExist"}},
		"rule 11: no values":                    {spec: `namespaceSelector: {matchExpressions: [{key: a, operator: In}]}`, want: []string{"spec.namespaceSelector.matchExpressions[0].values: Required: must be specified when `operator` is 'In' or 'NotIn'"}},
		"rules 11 and 13: a namespace's name":   {spec: `namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: "a b"}}`, want: []string{"spec.namespaceSelector.matchLabels: Invalid: a valid label must be"}},
		"rule 12: an empty selector":            {spec: `selector: {}`, want: []string{"spec.selector: Invalid: empty selector is not valid; add matchLabels or matchExpressions"}},
		"rule 12: an empty namespaceSelector":   {spec: `namespaceSelector: {}`, want: []string{"spec.namespaceSelector: Invalid: empty selector is not valid"}},
		"rule 26: nothing to inject":            {spec: `containers: []`, want: []string{"spec: Required: at least one of containers and initContainers must have an element; add a sidecar"}},
		"rule 28: another podInjectPolicy":      {spec: `containers: [{name: a, image: b, podInjectPolicy: First}]`, want: []string{`spec.containers[0].podInjectPolicy: NotSupported: supported values: "BeforeAppContainer", "AfterAppContainer"`}},
		"rule 29: another shareVolumePolicy":    {spec: `containers: [{name: a, image: b, shareVolumePolicy: {type: "on"}}]`, want: []string{`spec.containers[0].shareVolumePolicy.type: NotSupported: supported values: "enabled", "disabled"`}},
		"rule 36: an entry without annotations": {spec: `patchPodMetadata: [{}]`, want: []string{"spec.patchPodMetadata[0].annotations: Required: add the annotations to set, or remove the entry"}},
		"rule 37: a bad key":                    {spec: `patchPodMetadata: [{annotations: {"a b": c}}]`, want: []string{"spec.patchPodMetadata[0].annotations: Invalid: name part must consist of"}},
		"rule 37: too much of it":               {spec: `patchPodMetadata: [{annotations: {a: "` + strings.Repeat("x", 257<<10) + `"}}]`, want: []string{"spec.patchPodMetadata[0].annotations: TooLong: may not be more than 262144 bytes"}},
		"rule 39: one key twice":                {spec: `patchPodMetadata: [{annotations: {a: b}}, {annotations: {a: c}}]`, want: []string{"spec.patchPodMetadata[1].annotations[a]: Duplicate: another entry sets this annotation too; remove it from one of them"}},

		"all problems at once, in field order": {name: "a.b", spec: `{selector: null, containers: [{name: a}], volumes: [{}]}`, want: []string{"metadata.name: Invalid", "spec.selector: Required", "spec.containers[0].image: Required", "spec.volumes[0].name: Required"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			env := validation.Environment{Recorded: true, Whitelist: validation.Whitelist{Content: allowAll}}
			expect(t, tc.want, validation.Create(tc.set(t), env))
		})
	}
}

func TestCreateAccepts(t *testing.T) {
	tests := map[string]validationCase{
		"the smallest":                              {},
		"63 characters":                             {name: strings.Repeat("a", 63)},
		"a rolling update of containers":            {spec: `updateStrategy: {type: RollingUpdate}`},
		"rule 9 is lifted: native sidecars":         {spec: `{updateStrategy: {}, initContainers: [{name: m, image: i, restartPolicy: Always}, {name: p, image: i}]}`},
		"a rolling update beside a plain init":      {spec: `{updateStrategy: {type: RollingUpdate}, initContainers: [{name: i, image: b}]}`},
		"a native sidecar alone":                    {spec: `{containers: null, initContainers: [{name: i, image: b, restartPolicy: Always}]}`},
		"an init container called test":             {spec: `{containers: null, initContainers: [{name: test, image: b}]}`},
		"every operator":                            {spec: `selector: {matchExpressions: [{key: a, operator: In, values: [b]}, {key: c, operator: NotIn, values: [d]}, {key: e, operator: Exists}, {key: f, operator: DoesNotExist}]}`},
		"any podInjectPolicy of an init container":  {spec: `initContainers: [{name: i, image: b, podInjectPolicy: First, shareVolumePolicy: {type: "on"}}]`},
		"declared mounts and devices":               {spec: `{containers: [{name: a, image: b, volumeMounts: [{name: v, mountPath: /v}], volumeDevices: [{name: w, devicePath: /w}]}], volumes: [{name: v}, {name: w, persistentVolumeClaim: {claimName: c}}]}`},
		"an unused volume":                          {spec: `volumes: [{name: v}]`},
		"a volume and a container of one name":      {spec: `volumes: [{name: a}]`},
		"disabled sharing":                          {spec: `containers: [{name: a, image: b, shareVolumePolicy: {type: disabled}, shareVolumeDevicePolicy: {type: disabled}, upgradeStrategy: {upgradeType: ColdUpgrade}, transferEnv: []}]`},
		"an unknown type of updateStrategy":         {spec: `updateStrategy: {type: Later}`},
		"an unknown upgradeType and patchPolicy":    {spec: `{containers: [{name: a, image: b, upgradeStrategy: {upgradeType: Warm}}], patchPodMetadata: [{patchPolicy: Ask, annotations: {a: b}}]}`},
		"a negative revisionHistoryLimit":           {spec: `revisionHistoryLimit: -1`},
		"an annotation key with capitals":           {spec: `patchPodMetadata: [{annotations: {Team: a}}]`},
		"a base annotation on what is no canary":    {metadata: `annotations: {apps.kruise.io/sidecarset-base: nobody}`},
		"a canary annotation that is not quite set": {metadata: `annotations: {apps.kruise.io/sidecarset-base: nobody, apps.kruise.io/sidecarset-canary: "True"}`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			env := validation.Environment{Whitelist: validation.Whitelist{Content: allowAll}}
			expect(t, nil, validation.Create(tc.set(t), env))
		})
	}
}

func TestRule38PatchPolicyIsDefaulted(t *testing.T) {
	set := validationCase{spec: `patchPodMetadata: [{annotations: {a: b}}]`}.set(t)
	env := validation.Environment{Whitelist: validation.Whitelist{Content: allowAll}}
	expect(t, nil, validation.Create(set, env))
	set.Spec.PatchPodMetadata[0].PatchPolicy = ""
	expect(t, []string{"spec.patchPodMetadata[0].patchPolicy: Required: use Retain, Overwrite or MergePatchJson"}, validation.Create(set, env))
}

func TestTheOperatorsOwnAnnotationsCannotBePatched(t *testing.T) {
	for _, key := range []string{
		"kruise.io/sidecarset-hash",
		"kruise.io/sidecarset-hash-without-image",
		"kruise.io/sidecarset-injected-list",
		"kruise.io/sidecarset-working-hotupgrade-container",
		"kruise.io/sidecarset-inplace-update-state",
		"version.sidecarset.kruise.io/mesh-1",
		"versionalt.sidecarset.kruise.io/mesh-1",
		"sidecarset.io/revision-choice",
	} {
		t.Run(key, func(t *testing.T) {
			set := validationCase{spec: `patchPodMetadata: [{annotations: {` + key + `: x}}]`}.set(t)
			env := validation.Environment{Whitelist: validation.Whitelist{Content: allowAll}}
			expect(t, []string{"spec.patchPodMetadata[0].annotations[" + key + "]: Forbidden: the operator itself writes this annotation on Pods; use another key"},
				validation.Create(set, env))
		})
	}
}

func TestCanary(t *testing.T) {
	const annotations, path = `annotations: {apps.kruise.io/sidecarset-canary: "true", apps.kruise.io/sidecarset-base: base}`, "metadata.annotations[apps.kruise.io/sidecarset-base]: Invalid: "
	base := &validationCase{name: "base"}.set(t).ObjectMeta
	canary := &validationCase{name: "other", metadata: strings.ReplaceAll(annotations, "base: base", "base: root")}.set(t).ObjectMeta
	tests := map[string]struct {
		validationCase
		base *metav1.ObjectMeta
	}{
		"a canary of a SidecarSet":          {validationCase{metadata: annotations}, base},
		"rule 4: of itself":                 {validationCase{name: "base", metadata: annotations, want: []string{path + "a canary cannot be its own base; name the SidecarSet that it replaces"}}, base},
		"rule 6: of nothing":                {validationCase{metadata: annotations, want: []string{path + "no SidecarSet of this name exists; create the base first or correct the name"}}, nil},
		"rule 7: of a canary":               {validationCase{metadata: annotations, want: []string{path + "is itself a canary, of root; name a SidecarSet that is none"}}, canary},
		"rule 8: that updates running Pods": {validationCase{metadata: annotations, spec: `updateStrategy: {}`, want: []string{"spec.updateStrategy.type: Invalid: a canary does not update running Pods; set updateStrategy.type NotUpdate"}}, base},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			expect(t, tc.want, validation.Create(tc.set(t), validation.Environment{Base: tc.base}))
		})
	}
}

func TestUpdate(t *testing.T) {
	const canary = `annotations: {apps.kruise.io/sidecarset-canary: "true", apps.kruise.io/sidecarset-base: base}`
	tests := map[string]struct {
		old, set validationCase
		want     []string
	}{
		"nothing changes": {},
		"rule 5: another base": {
			old:  validationCase{metadata: strings.ReplaceAll(canary, "base: base", "base: root")},
			set:  validationCase{metadata: canary},
			want: []string{`metadata.annotations[apps.kruise.io/sidecarset-base]: Invalid: a canary's base is immutable (it was "root"); delete the SidecarSet and create it with its new base`},
		},
		"rule 5: a SidecarSet becomes a canary": {
			set:  validationCase{metadata: canary},
			want: []string{`metadata.annotations[apps.kruise.io/sidecarset-base]: Invalid: a canary's base is immutable (it was "")`},
		},
		"a canary becomes a SidecarSet": {old: validationCase{metadata: canary}},
		"rule 40: a container is added": {
			set:  validationCase{spec: `containers: [{name: a, image: b}, {name: c, image: d}]`},
			want: []string{"spec.containers[1].name: Invalid: container c is not found in the stored SidecarSet: an update may not add or rename containers"},
		},
		"a container is removed": {old: validationCase{spec: `containers: [{name: a, image: b}, {name: c, image: d}]`}},
		"init containers, selectors and volumes are free to change": {
			set: validationCase{spec: `{initContainers: [{name: i, image: b}], selector: {matchLabels: {x: v}}, namespaceSelector: {matchLabels: {x: v}}, volumes: [{name: v}], containers: [{name: a, image: "c:2", env: [{name: x, value: v}]}]}`},
		},
		"rule 41: another upgradeType": {
			set:  validationCase{spec: `containers: [{name: a, image: b, upgradeStrategy: {upgradeType: Warm}}]`},
			want: []string{"spec.containers[0].upgradeStrategy.upgradeType: Invalid: is immutable; set it back to ColdUpgrade, or delete the SidecarSet and create it again"},
		},
		"rule 35, T32: the whitelist is asked again": {
			old:  validationCase{spec: `patchPodMetadata: [{annotations: {a: b}}]`},
			set:  validationCase{spec: `{patchPodMetadata: [{annotations: {a: b}}], revisionHistoryLimit: 3}`},
			want: []string{"spec.patchPodMetadata: Forbidden: whitelist not found"},
		},
		"rules of creation hold": {set: validationCase{spec: `selector: null`}, want: []string{"spec.selector: Required"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			env := validation.Environment{Base: &validationCase{name: "base"}.set(t).ObjectMeta}
			expect(t, tc.want, validation.Update(tc.set.set(t), tc.old.set(t), env))
		})
	}
	t.Run("rule 41: an upgradeType that was never set", func(t *testing.T) {
		old, set := validationCase{}.set(t), validationCase{}.set(t)
		old.Spec.Containers[0].UpgradeStrategy.UpgradeType = ""
		expect(t, nil, validation.Update(set, old, validation.Environment{}))
	})
}

func TestRule35Whitelist(t *testing.T) {
	const notFound = "spec.patchPodMetadata: Forbidden: whitelist not found: no rule applies to this SidecarSet; ask an administrator to add one to key SidecarSet_PatchPodMetadata_WhiteList of ConfigMap ours/kruise-configuration"
	const unusable = "spec.patchPodMetadata: Forbidden: the whitelist cannot be used: "
	tests := map[string]struct {
		content string
		want    []string
	}{
		"there is none":                      {want: []string{notFound}},
		"it allows the key":                  {content: `{"rules":[{"allowedAnnotationKeyExprs":["x","^example.com/"]}]}`},
		"it allows a part of the key":        {content: `{"rules":[{"allowedAnnotationKeyExprs":["ple"]}]}`},
		"another rule allows it":             {content: `{"rules":[{"allowedAnnotationKeyExprs":["x"]},{"selector":{"matchLabels":{"team":"a"}},"allowedAnnotationKeyExprs":["key"]}]}`},
		"it does not allow the key":          {content: `{"rules":[{"allowedAnnotationKeyExprs":["^x"]}]}`, want: []string{"spec.patchPodMetadata[0].annotations[example.com/key]: Forbidden: no rule of the whitelist allows this annotation"}},
		"its rules are about others":         {content: `{"rules":[{"selector":{"matchLabels":{"team":"b"}},"allowedAnnotationKeyExprs":["."]}]}`, want: []string{notFound}},
		"it has no rules":                    {content: `{}`, want: []string{notFound}},
		"it is no JSON":                      {content: `rules:`, want: []string{unusable + "reading it as JSON: invalid character 'r'"}},
		"an expression is none":              {content: `{"rules":[{"allowedAnnotationKeyExprs":["("]}]}`, want: []string{unusable + "rules[0].allowedAnnotationKeyExprs: error parsing regexp"}},
		"a selector is none":                 {content: `{"rules":[{"selector":{"matchExpressions":[{"key":"a","operator":"Like"}]}}]}`, want: []string{unusable + `rules[0].selector: "Like" is not a valid label selector operator`}},
		"members in another case are read":   {content: `{"Rules":[{"allowedannotationkeyexprs":["."]}]}`},
		"an expression about others is none": {content: `{"rules":[{"selector":{"matchLabels":{"team":"b"}},"allowedAnnotationKeyExprs":["("]},{"allowedAnnotationKeyExprs":["."]}]}`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			set := validationCase{metadata: `labels: {team: a}`, spec: `patchPodMetadata: [{annotations: {example.com/key: v}}]`}.set(t)
			env := validation.Environment{Whitelist: validation.Whitelist{Namespace: "ours", Content: tc.content}}
			expect(t, tc.want, validation.Create(set, env))
		})
	}
}

// With OpenKruise's gate SidecarSetPatchPodMetadataDefaultsAllowed, the operator's flag
// --patch-pod-metadata-allowed, a whitelist without rules for a SidecarSet allows everything.
func TestRule35WhereTheWhitelistSaysNothing(t *testing.T) {
	tests := map[string]struct {
		content string
		refused bool
	}{
		"there is none":              {"", false},
		"it has no rules":            {`{}`, false},
		"its rules are about others": {`{"rules":[{"selector":{"matchLabels":{"team":"b"}},"allowedAnnotationKeyExprs":["x"]}]}`, false},
		"a rule has no expression":   {`{"rules":[{}]}`, false},
		"it does not allow the key":  {`{"rules":[{"allowedAnnotationKeyExprs":["^x"]}]}`, true},
		"it is no JSON":              {`rules:`, true},
		"an expression is none":      {`{"rules":[{"allowedAnnotationKeyExprs":["("]}]}`, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			set := validationCase{spec: `patchPodMetadata: [{annotations: {example.com/key: v}}]`}.set(t)
			env := validation.Environment{Whitelist: validation.Whitelist{Namespace: "ours", Content: tc.content, AllowedByDefault: true}}
			if errs := validation.Create(set, env); (len(errs) > 0) != tc.refused {
				t.Errorf("got %v, want a refusal: %v", errs, tc.refused)
			}
		})
	}
}

// object is the SidecarSet as it is validated: defaulted.
func (c validationCase) object(t *testing.T) map[string]any {
	t.Helper()
	metadata, spec := parse(t, c.metadata), parse(t, validSpec)
	if _, generated := metadata["generateName"]; !generated || c.name != "" {
		metadata["name"] = "log"
	}
	if c.name != "" {
		metadata["name"] = c.name
	}
	maps.Copy(spec, parse(t, c.spec))
	object := map[string]any{"metadata": metadata, "spec": spec}
	defaults.Apply(object)
	return object
}

// set is the same, decoded.
func (c validationCase) set(t *testing.T) *appsv1beta1.SidecarSet {
	t.Helper()
	data, err := json.Marshal(c.object(t))
	if err != nil {
		t.Fatal(err)
	}
	var set appsv1beta1.SidecarSet
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &set); err != nil {
		t.Fatal(err)
	}
	if set.GenerateName != "" {
		set.Name = strings.ReplaceAll(set.GenerateName+"x", ".", "-") // one problem is enough
	}
	return &set
}

func parse(t *testing.T, text string) map[string]any {
	t.Helper()
	object := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &object); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return object
}

var errorTypes = map[field.ErrorType]string{
	field.ErrorTypeInvalid: "Invalid", field.ErrorTypeRequired: "Required", field.ErrorTypeForbidden: "Forbidden",
	field.ErrorTypeDuplicate: "Duplicate", field.ErrorTypeNotSupported: "NotSupported", field.ErrorTypeTooLong: "TooLong",
}

// expect compares path and type, and the beginning of the detail.
func expect(t *testing.T, want []string, errs field.ErrorList) {
	t.Helper()
	var got []string
	for i, err := range errs {
		line := err.Field + ": " + errorTypes[err.Type] + ": " + err.Detail
		if i < len(want) && strings.HasPrefix(line, want[i]) {
			line = want[i]
		}
		got = append(got, line)
		if !remedy.MatchString(err.Detail) {
			t.Errorf("%v names no remedy", err)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
}
