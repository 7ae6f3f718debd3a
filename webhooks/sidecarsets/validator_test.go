package sidecarsets_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/webhooks/sidecarsets"
)

// live is a fake API server. It has SidecarSets by name with their annotations,
// and the content of the whitelist.
type live struct {
	client.Reader
	sets      map[string]map[string]string
	whitelist string
	stored    []string // manifests of SidecarSets
	revisions []appsv1.ControllerRevision
	err       error
	reads     []string
}

func (l *live) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if l.err != nil {
		return l.err
	}
	if list, ok := list.(*appsv1.ControllerRevisionList); ok {
		list.Items = l.revisions
	}
	return nil
}

// catalog returns a snapshot of the SidecarSets in stored.
func (l *live) catalog(context.Context) (*match.Snapshot, error) {
	if l.err != nil {
		return nil, l.err
	}
	var programs []*inject.Program
	for _, manifest := range l.stored {
		var object map[string]any
		if err := yaml.Unmarshal([]byte(manifest), &object); err != nil {
			return nil, err
		}
		if program, _ := inject.Compile(object); program != nil {
			programs = append(programs, program)
		}
	}
	return match.Build(programs, nil), nil
}

func (l *live) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	l.reads = append(l.reads, key.String())
	if l.err != nil {
		return l.err
	}
	switch object := object.(type) {
	case *metav1.PartialObjectMetadata:
		if annotations, ok := l.sets[key.Name]; ok && object.Kind == "SidecarSet" {
			object.Name, object.Annotations = key.Name, annotations
			return nil
		}
	case *corev1.ConfigMap:
		if l.whitelist != "" && key.String() == "ours/kruise-configuration" {
			object.Data = map[string]string{"SidecarSet_PatchPodMetadata_WhiteList": l.whitelist}
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

func validator(reader *live) http.Handler {
	return sidecarsets.NewValidator(sidecarsets.ValidatorOptions{
		Stored: reader.catalog, Reader: reader, Namespace: "ours", ExcludedNamespaces: []string{"ours", "kube-system"},
	})
}

const (
	canaryManifest = "{name: log, annotations: {apps.kruise.io/sidecarset-canary: \"true\", apps.kruise.io/sidecarset-base: base}}"
	patchMember    = "  patchPodMetadata: [{annotations: {example.com/a: b}, patchPolicy: Retain}]\n"
)

// defaulted returns the manifest after the mutating webhook, as the validating webhook gets it.
func defaulted(t *testing.T, manifest string) string {
	t.Helper()
	answer := fixtures.Review(t, sidecarsets.NewDefaulter(), sidecarSetReview(t, manifest, ""))
	if !answer.Allowed {
		t.Fatalf("refused: %v", answer.Result)
	}
	object := manifestObject(t, manifest)
	if answer.Patch != nil {
		object = fixtures.Patched(t, object, answer.Patch)
	}
	return string(fixtures.Encode(t, object))
}

func TestSidecarSetValidatorAllows(t *testing.T) {
	tests := map[string]struct {
		manifest string
		live     live
		warnings []string
		reads    []string
	}{
		"v1beta1":  {manifest: betaManifest},
		"v1alpha1": {manifest: strings.Replace(betaManifest, "v1beta1", "v1alpha1", 1) + "  namespace: team-a\n"},
		"a canary whose base exists": {
			manifest: strings.Replace(betaManifest, "{name: log}", canaryManifest, 1),
			live:     live{sets: map[string]map[string]string{"base": nil}},
			reads:    []string{"/base"},
		},
		"what the whitelist allows": {
			manifest: betaManifest + patchMember,
			live:     live{whitelist: `{"rules":[{"allowedAnnotationKeyExprs":["^example.com/"]}]}`},
			reads:    []string{"ours/kruise-configuration"},
		},
		"kube-system, with a warning": {
			manifest: betaManifest + "  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}\n",
			warnings: []string{"spec.namespaceSelector: names kube-system, whose Pods are never injected; the operator's administrator can change the excluded namespaces"},
		},
		"kube-system by the namespace of v1alpha1, with a warning": {
			manifest: strings.Replace(betaManifest, "v1beta1", "v1alpha1", 1) + "  namespace: kube-system\n",
			warnings: []string{"spec.namespaceSelector: names kube-system, whose Pods are never injected; the operator's administrator can change the excluded namespaces"},
		},
		"what meets with others in no Pod": {
			manifest: betaManifest,
			live: live{stored: []string{
				betaManifest,
				strings.NewReplacer("{name: log}", "{name: broken}", `"busybox:1.36"`, "5").Replace(betaManifest),
				strings.NewReplacer("{name: log}", "{name: nil-selector}", "{matchLabels: {app: web}}", "null").Replace(betaManifest),
				strings.NewReplacer("{name: log}", "{name: elsewhere}", "app: web", "app: db").Replace(betaManifest),
			}},
		},
		"an overlap that OpenKruise does not see, with a warning": {
			manifest: betaManifest,
			live:     live{stored: []string{strings.NewReplacer("{name: log}", "{name: other}", "{matchLabels: {app: web}}", "{matchExpressions: [{key: zone, operator: Exists}]}").Replace(betaManifest)}},
			warnings: []string{`spec.containers[0].name: "agent" is a container of SidecarSet other, which may select the same Pods; rename it or keep their selectors apart`},
		},
		"members that it does not know": {manifest: betaManifest + "  novel: [1]\n"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			answer := fixtures.Review(t, validator(&tc.live), sidecarSetReview(t, defaulted(t, tc.manifest), ""))
			if !answer.Allowed || answer.Patch != nil {
				t.Fatalf("got %+v", answer.Result)
			}
			if diff := cmp.Diff(tc.warnings, answer.Warnings); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.reads, tc.live.reads); diff != "" {
				t.Errorf("live reads (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSidecarSetValidatorRefuses(t *testing.T) {
	tests := map[string]struct {
		manifest, old string
		live          live
		message       string
		causes        map[string]string // field → what its message contains
	}{
		"all problems at once": {
			manifest: strings.NewReplacer("{matchLabels: {app: web}}", "{}", "image", "command: [x], workingDir").Replace(betaManifest),
			message:  `SidecarSet.apps.kruise.io "log" is invalid: [spec.selector: Invalid value: {}: empty selector is not valid; add matchLabels or matchExpressions, spec.containers[0].image: Required value: name the image that the sidecar runs]`,
			causes:   map[string]string{"spec.selector": "add matchLabels", "spec.containers[0].image": "name the image"},
		},
		"v1alpha1, at paths of v1beta1": {
			manifest: strings.Replace(betaManifest, "v1beta1", "v1alpha1", 1) + "  namespace: a b\n",
			causes:   map[string]string{"spec.namespaceSelector.matchLabels": "a valid label must be"},
		},
		"a canary of nothing": {
			manifest: strings.Replace(betaManifest, "{name: log}", canaryManifest, 1),
			causes:   map[string]string{"metadata.annotations[apps.kruise.io/sidecarset-base]": "create the base first"},
		},
		"a canary of a canary": {
			manifest: strings.Replace(betaManifest, "{name: log}", canaryManifest, 1),
			live:     live{sets: map[string]map[string]string{"base": {"apps.kruise.io/sidecarset-canary": "true", "apps.kruise.io/sidecarset-base": "root"}}},
			causes:   map[string]string{"metadata.annotations[apps.kruise.io/sidecarset-base]": "is itself a canary, of root"},
		},
		"annotations without a whitelist": {
			manifest: betaManifest + patchMember,
			causes:   map[string]string{"spec.patchPodMetadata": "add one to key SidecarSet_PatchPodMetadata_WhiteList of ConfigMap ours/kruise-configuration"},
		},
		"a container that another SidecarSet has": {
			manifest: betaManifest,
			live:     live{stored: []string{strings.Replace(betaManifest, "{name: log}", "{name: other}", 1)}, sets: map[string]map[string]string{"other": nil}},
			causes:   map[string]string{"spec.containers[0].name": "is a container of SidecarSet other, which may select the same Pods"},
		},
		"a container that an update adds": {
			manifest: strings.Replace(betaManifest, "name: agent", "name: second", 1),
			old:      betaManifest,
			causes:   map[string]string{"spec.containers[0].name": "container second is not found"},
		},
		"the same, when the stored version is older": {
			manifest: strings.Replace(betaManifest, "name: agent", "name: second", 1),
			old:      strings.Replace(betaManifest, "v1beta1", "v1alpha1", 1),
			causes:   map[string]string{"spec.containers[0].name": "container second is not found"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			answer := fixtures.Review(t, validator(&tc.live), sidecarSetReview(t, defaulted(t, tc.manifest), tc.old))
			if answer.Allowed || answer.Result.Code != http.StatusUnprocessableEntity || answer.Result.Reason != metav1.StatusReasonInvalid {
				t.Fatalf("got %+v, want 422 Invalid", answer.Result)
			}
			if !strings.Contains(answer.Result.Message, tc.message) {
				t.Errorf("message %s, want %s", answer.Result.Message, tc.message)
			}
			if len(answer.Result.Details.Causes) != len(tc.causes) {
				t.Errorf("causes: %v", answer.Result.Details.Causes)
			}
			for _, cause := range answer.Result.Details.Causes {
				if want, ok := tc.causes[cause.Field]; !ok || !strings.Contains(cause.Message, want) {
					t.Errorf("cause %+v, want %v", cause, tc.causes)
				}
			}
		})
	}
}

// An update may keep the problems of the stored SidecarSet, so that it can be paused. It may
// not add problems.
func TestAnUpdateMayKeepWhatIsWrong(t *testing.T) {
	const (
		paused  = "  injectionStrategy: {paused: true}\n"
		volume  = "  volumes: [{name: v, emptyDir: {}}]\n"
		missing = "  injectionStrategy: {revision: {revisionName: log-1}}\n"

		badVolume = "  volumes: [{name: bad, emptyDir: {}, hostPath: {path: /a}}]\n"
	)
	other := strings.Replace(betaManifest, "{name: log}", "{name: other}", 1) + "  volumes: [{name: v, hostPath: {path: /}}]\n"
	tests := map[string]struct {
		old, manifest string
		refused       string // in the refusal; "" if the update is allowed
		kept          string // in a warning; "" if there is none
	}{
		"a clash, to pause":  {betaManifest, betaManifest + paused, "", "is a container of SidecarSet other"},
		"a clash, to resume": {betaManifest + paused, betaManifest, "is a container of SidecarSet other", ""},
		"a name that is stored nowhere": {strings.Replace(betaManifest, "{name: log}", `{name: "*"}`, 1), strings.Replace(betaManifest, "{name: log}", `{name: "*"}`, 1),
			"metadata.name", ""},
		"a clash, to label": {betaManifest, strings.Replace(betaManifest, "{name: log}", "{name: log, labels: {a: b}}", 1), "", "is a container of SidecarSet other"},
		"a clash, and one more": {betaManifest, betaManifest + volume, "is another volume of SidecarSet other",
			"is a container of SidecarSet other"},
		"a clash that was resolved once": {strings.Replace(betaManifest, "name: agent", "name: else", 1), betaManifest, "is a container of SidecarSet other", ""},
		"a clash, in other Pods": {betaManifest, strings.Replace(betaManifest, "{matchLabels: {app: web}}", "{matchExpressions: [{key: app, operator: In, values: [web, db]}]}", 1),
			"is a container of SidecarSet other", ""},
		"a clash, in more namespaces":      {betaManifest + "  namespaceSelector: {matchLabels: {a: b}}\n", betaManifest, "is a container of SidecarSet other", ""},
		"a revision that is gone":          {betaManifest + missing, betaManifest + missing + "  revisionHistoryLimit: 3\n", "", "cannot find ControllerRevision"},
		"a revision that was never there":  {betaManifest + missing, betaManifest + strings.Replace(missing, "log-1", "log-2", 1), "log-2", "is a container of SidecarSet other"},
		"T32: what the whitelist forbids":  {betaManifest + patchMember, betaManifest + patchMember + paused, "whitelist not found", "is a container of SidecarSet other"},
		"a stored one that is too large":   {betaManifest + "  revisionHistoryLimit: 2\n  customVersion: " + strings.Repeat("v", 257<<10) + "\n", betaManifest, "is a container of SidecarSet other", ""},
		"an expression that does not work": {policy("50mm"), policy("50mm") + paused, "", `"50mm" is neither a number`},
		"a volume that moves within its list": {betaManifest + badVolume, betaManifest + strings.Replace(badVolume, "[", "[{name: new, emptyDir: {}}, ", 1), "",
			"spec.volumes[1].hostPath"},
		"another one that does not work": {policy("50mm"), policy("51mm"), `"51mm" is neither a number`, "is a container of SidecarSet other"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			reader := &live{stored: []string{other}, sets: map[string]map[string]string{"other": nil}}
			answer := fixtures.Review(t, validator(reader), sidecarSetReview(t, defaulted(t, tc.manifest), tc.old))
			if answer.Allowed != (tc.refused == "") || !answer.Allowed && !strings.Contains(answer.Result.Message, tc.refused) {
				t.Errorf("allowed is %v, with %v; want refused for %q", answer.Allowed, answer.Result, tc.refused)
			}
			already := slices.DeleteFunc(slices.Clone(answer.Warnings), func(warning string) bool { return !strings.Contains(warning, "has this problem already") })
			if told := strings.Join(already, "\n"); (told == "") != (tc.kept == "") || !strings.Contains(told, tc.kept) {
				t.Errorf("warnings %q, want %q", already, tc.kept)
			}
			if tc.kept != "" && !answer.Allowed && strings.Contains(answer.Result.Message, tc.kept) {
				t.Errorf("it is refused for what was wrong before, too: %s", answer.Result.Message)
			}
		})
	}
}

// policy is a manifest whose sidecar has a resourcesPolicy.
func policy(cpu string) string {
	return strings.NewReplacer("{name: agent,", "{name: agent, resourcesPolicy: {targetContainersMode: sum, targetContainersNameRegex: a, resourcesExpr: {limits: {cpu: "+cpu+"}}},").Replace(betaManifest)
}

func TestAnnotationsAreAllowedWithoutWhitelistWhereTheFlagSaysSo(t *testing.T) {
	reader := &live{}
	handler := sidecarsets.NewValidator(sidecarsets.ValidatorOptions{
		Stored: reader.catalog, Reader: reader, Namespace: "ours", PatchPodMetadataAllowed: true,
	})
	if answer := fixtures.Review(t, handler, sidecarSetReview(t, defaulted(t, betaManifest+patchMember), "")); !answer.Allowed {
		t.Errorf("refused without a whitelist: %v", answer.Result)
	}
	reader.whitelist = `{"rules":[{"allowedAnnotationKeyExprs":["^other/"]}]}`
	if answer := fixtures.Review(t, handler, sidecarSetReview(t, defaulted(t, betaManifest+patchMember), "")); answer.Allowed {
		t.Error("admitted against the whitelist")
	}
}

// The snapshot may still hold a SidecarSet that has just been deleted. So the webhook reads a
// SidecarSet live before it refuses another one because of it.
func TestADeletedSidecarSetInTheSnapshotRefusesNoOther(t *testing.T) {
	clashing := func(name string) string { return strings.Replace(betaManifest, "{name: log}", "{name: "+name+"}", 1) }
	tests := map[string]struct {
		stored []string
		named  string // in the refusal
	}{
		"both are gone": {},
		"one is gone":   {[]string{"beta"}, "beta"},
		"none is gone":  {[]string{"alpha", "beta"}, "alpha"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			reader := &live{stored: []string{clashing("alpha"), clashing("beta")}, sets: map[string]map[string]string{}}
			for _, stored := range tc.stored {
				reader.sets[stored] = nil
			}
			answer := fixtures.Review(t, validator(reader), sidecarSetReview(t, defaulted(t, betaManifest), ""))
			if answer.Allowed != (tc.named == "") {
				t.Fatalf("allowed is %v: %v", answer.Allowed, answer.Result)
			}
			if len(reader.reads) != 2 {
				t.Errorf("it read %v, want both", reader.reads)
			}
			if !answer.Allowed && (!strings.Contains(answer.Result.Message, "SidecarSet "+tc.named) || len(answer.Result.Details.Causes) != len(tc.stored)) {
				t.Errorf("it says %s, want %v", answer.Result.Message, tc.stored)
			}
		})
	}
}

// If the look-up of the other SidecarSet fails, the answer is an error and no denial by a rule.
func TestAClashThatCannotBeConfirmedIsAnError(t *testing.T) {
	reader := &live{stored: []string{strings.Replace(betaManifest, "{name: log}", "{name: other}", 1)}}
	handler := sidecarsets.NewValidator(sidecarsets.ValidatorOptions{
		Stored: reader.catalog, Reader: &live{err: errors.New("boom")}, Namespace: "ours",
	})
	answer := fixtures.Review(t, handler, sidecarSetReview(t, defaulted(t, betaManifest), ""))
	if answer.Allowed || answer.Result.Code != http.StatusInternalServerError || !strings.Contains(answer.Result.Message, "looking up SidecarSet other, try again: boom") {
		t.Errorf("got %v", answer.Result)
	}
}

// An object that was stored while no replica checked it can still be repaired.
func TestSidecarSetValidatorLetsABrokenObjectBeRepaired(t *testing.T) {
	old := strings.Replace(betaManifest, `"busybox:1.36"`, "5", 1)
	answer := fixtures.Review(t, validator(&live{}), sidecarSetReview(t, defaulted(t, betaManifest), old))
	if !answer.Allowed {
		t.Errorf("refused: %v", answer.Result)
	}
}

// If a look-up fails, the message names what was looked up, and the code is 500.
func TestSidecarSetValidatorReportsFailedLookUps(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "x", errors.New("no"))
	tests := map[string]struct {
		manifest string
		err      error
		want     string
	}{
		"of a base":      {strings.Replace(betaManifest, "{name: log}", canaryManifest, 1), errors.New("boom"), "looking up SidecarSet base, try again: boom"},
		"of the others":  {betaManifest, forbidden, "looking up the other SidecarSets, try again: things"},
		"of revisions":   {betaManifest + "  injectionStrategy: {revision: {customVersion: v1}}\n", errors.New("boom"), "looking up the ControllerRevisions of SidecarSet log, try again: boom"},
		"of a whitelist": {betaManifest + patchMember, forbidden, "looking up ConfigMap ours/kruise-configuration, try again: things"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			answer := fixtures.Review(t, validator(&live{err: tc.err}), sidecarSetReview(t, defaulted(t, tc.manifest), ""))
			if answer.Allowed || answer.Result.Code != http.StatusInternalServerError || !strings.Contains(answer.Result.Message, tc.want) {
				t.Errorf("got %v, want 500 %s", answer.Result, tc.want)
			}
		})
	}
}

// The webhook warns about an update if running Pods cannot be updated to it in place.
func TestSidecarSetValidatorWarnsAboutRunningPods(t *testing.T) {
	old := strings.Replace(betaManifest, "NotUpdate", "RollingUpdate", 1)
	const unreachable = "running Pods cannot be updated in place until they are recreated, neither to this content nor to later images; to update them in place, change only images, cpu and memory, and remove no amount"
	tests := map[string]struct {
		manifest string
		want     []string
	}{
		"nothing":                                {old, nil},
		"an image":                               {strings.Replace(old, "busybox:1.36", "busybox:1.37", 1), nil},
		"a command":                              {strings.Replace(old, "name: agent", "name: agent, command: [x]", 1), []string{"spec.containers[0]: agent: command changed: " + unreachable}},
		"a member that is not known":             {strings.Replace(old, "name: agent", "name: agent, novel: 1", 1), []string{"spec.containers[0]: agent: novel changed: " + unreachable}},
		"the tag latest, which is pulled always": {strings.Replace(old, "busybox:1.36", "busybox:latest", 1), []string{"spec.containers[0]: agent: imagePullPolicy changed (it follows the tag of the image; write imagePullPolicy: IfNotPresent, so that only the image changes): " + unreachable}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			answer := fixtures.Review(t, validator(&live{}), sidecarSetReview(t, defaulted(t, tc.manifest), defaulted(t, old)))
			if !answer.Allowed {
				t.Fatalf("refused: %v", answer.Result)
			}
			if diff := cmp.Diff(tc.want, answer.Warnings); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSidecarSetValidatorLooksUpRevisions(t *testing.T) {
	recorded := func(owner string) live {
		return live{revisions: []appsv1.ControllerRevision{{ObjectMeta: metav1.ObjectMeta{Name: "log-1", Labels: map[string]string{"kruise.io/sidecarset-name": owner}}}}}
	}
	tests := map[string]struct {
		live  live
		found bool
	}{
		"T16: that another SidecarSet recorded": {recorded("other"), false},
		"rule 15: that no SidecarSet recorded":  {live{}, false},
		"its own":                               {recorded("log"), true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			manifest := betaManifest + "  injectionStrategy: {revision: {revisionName: log-1}}\n"
			answer := fixtures.Review(t, validator(&tc.live), sidecarSetReview(t, defaulted(t, manifest), ""))
			missing := answer.Result != nil && strings.Contains(answer.Result.Message, "cannot find ControllerRevision")
			if missing == tc.found {
				t.Errorf("found %v, want %v: %+v", !missing, tc.found, answer.Result)
			}
		})
	}
}
