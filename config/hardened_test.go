package config

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

const hardened = "overlays/hardened"

// profiles are the two ways to install, with their Deployments and the replicas
// that each has.
var profiles = map[string]struct {
	path        string
	deployments map[string]int32
}{
	"default":  {standard, map[string]int32{"sidecarset-operator": 2}},
	"hardened": {hardened, map[string]int32{"sidecarset-webhook": 3, "sidecarset-controller": 2}},
}

// all decodes the installed objects of a kind, by name.
func all[T any](t *testing.T, path, kind string) map[string]T {
	t.Helper()
	found := map[string]T{}
	for _, document := range built(t, path) {
		if document["kind"] == kind {
			var object T
			convert(t, document, &object)
			metadata, _ := document["metadata"].(map[string]any)
			found[text(metadata["name"])] = object
		}
	}
	return found
}

// Pods keep to the restricted Pod Security Standard, as the Namespace demands.
func TestOperatorFitsItsNamespace(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, profile := range profiles {
		t.Run(name, func(t *testing.T) {
			namespace := all[corev1.Namespace](t, profile.path, "Namespace")["sidecarset-system"]
			for _, mode := range []string{"enforce", "audit", "warn"} {
				if got := namespace.Labels["pod-security.kubernetes.io/"+mode]; got != "restricted" {
					t.Errorf("the Namespace's %s is %q, want restricted", mode, got)
				}
			}
			for name, deployment := range all[appsv1.Deployment](t, profile.path, "Deployment") {
				pod := deployment.Spec.Template
				restricted := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
				if result := policy.AggregateCheckResults(evaluator.EvaluatePod(restricted, &pod.ObjectMeta, &pod.Spec)); !result.Allowed {
					t.Errorf("Pods of %s: %s (%s)", name, result.ForbiddenReason(), result.ForbiddenDetail())
				}
				if !*pod.Spec.Containers[0].SecurityContext.ReadOnlyRootFilesystem {
					t.Errorf("Pods of %s can write to their image", name)
				}
			}
		})
	}
}

func TestDeploymentsHaveReplicasAndADisruptionBudget(t *testing.T) {
	for name, profile := range profiles {
		deployments := all[appsv1.Deployment](t, profile.path, "Deployment")
		if diff := cmp.Diff(slices.Sorted(maps.Keys(profile.deployments)), slices.Sorted(maps.Keys(deployments))); diff != "" {
			t.Fatalf("Deployments (-want +got):\n%s", diff)
		}
		for deployment, replicas := range profile.deployments {
			t.Run(name+" "+deployment, func(t *testing.T) {
				d := deployments[deployment]
				if got := *d.Spec.Replicas; got != replicas {
					t.Errorf("%d replicas, want %d", got, replicas)
				}
				expectDisruptionBudget(t, profile.path, &d)
				expectGoodManners(t, &d)
			})
		}
	}
}

// expectDisruptionBudget wants exactly one PodDisruptionBudget for the Pods.
func expectDisruptionBudget(t *testing.T, path string, d *appsv1.Deployment) {
	t.Helper()
	var protecting []string
	for name, budget := range all[policyv1.PodDisruptionBudget](t, path, "PodDisruptionBudget") {
		if selects(t, budget.Spec.Selector, d) {
			protecting = append(protecting, name)
			if budget.Spec.MaxUnavailable.IntValue() != 1 || *budget.Spec.UnhealthyPodEvictionPolicy != policyv1.AlwaysAllow {
				t.Errorf("PodDisruptionBudget %s is %+v", name, budget.Spec)
			}
		}
	}
	if diff := cmp.Diff([]string{d.Name}, protecting); diff != "" {
		t.Errorf("PodDisruptionBudgets of the Pods (-want +got):\n%s", diff)
	}
}

func selects(t *testing.T, selector *metav1.LabelSelector, d *appsv1.Deployment) bool {
	t.Helper()
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		t.Fatal(err)
	}
	return parsed.Matches(labels.Set(d.Spec.Template.Labels))
}

// expectGoodManners is about how Pods are placed, replaced and stopped.
func expectGoodManners(t *testing.T, d *appsv1.Deployment) {
	t.Helper()
	pod := d.Spec.Template.Spec
	if update := d.Spec.Strategy.RollingUpdate; update.MaxUnavailable.IntValue() != 0 || update.MaxSurge.IntValue() != 1 {
		t.Errorf("rolling update %+v", update)
	}
	if pod.PriorityClassName != "system-cluster-critical" {
		t.Errorf("priority class %q, want %q", pod.PriorityClassName, "system-cluster-critical")
	}
	var spread []string
	for _, constraint := range pod.TopologySpreadConstraints {
		spread = append(spread, constraint.TopologyKey)
		if !selects(t, constraint.LabelSelector, d) {
			t.Errorf("spread over %s is about other Pods", constraint.TopologyKey)
		}
		if constraint.TopologyKey == corev1.LabelHostname && (constraint.WhenUnsatisfiable != corev1.DoNotSchedule ||
			constraint.NodeTaintsPolicy == nil || *constraint.NodeTaintsPolicy != corev1.NodeInclusionPolicyHonor) {
			t.Errorf("one node may get both replicas, or a cordoned node counts: %+v", constraint)
		}
	}
	if diff := cmp.Diff([]string{"kubernetes.io/hostname", "topology.kubernetes.io/zone"}, spread); diff != "" {
		t.Errorf("spread (-want +got):\n%s", diff)
	}
	container := pod.Containers[0]
	if requests := container.Resources.Requests; requests.Cpu().IsZero() || requests.Memory().IsZero() {
		t.Errorf("requests %v", requests)
	}
	if probe := container.ReadinessProbe; probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != "/readyz" || probe.HTTPGet.Port.StrVal != "probes" {
		t.Errorf("readiness probe: %+v", probe)
	}
	if probe := container.LivenessProbe; probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != "/healthz" || probe.HTTPGet.Port.StrVal != "probes" {
		t.Errorf("liveness probe: %+v", probe)
	} else if probe.PeriodSeconds*probe.FailureThreshold < 300 || probe.TimeoutSeconds < 30 {
		t.Errorf("the liveness probe restarts a replica that only gets too little CPU: %+v", probe)
	}
	if patience, needed := time.Duration(*pod.TerminationGracePeriodSeconds)*time.Second, drainTime(t, container.Args); patience < needed {
		t.Errorf("Pods are killed after %s; draining takes up to %s", patience, needed)
	}
}

// Where clusters admit critical Pods only by a quota, ours admits all that a
// profile runs, and as many again while they are replaced.
func TestAQuotaAdmitsCriticalPods(t *testing.T) {
	for name, profile := range profiles {
		t.Run(name, func(t *testing.T) {
			quota, ok := all[corev1.ResourceQuota](t, profile.path, "ResourceQuota")["sidecarset-critical-pods"]
			if !ok || quota.Namespace != "sidecarset-system" {
				t.Fatalf("there is no such quota in our namespace: %+v", quota)
			}
			want := []corev1.ScopedResourceSelectorRequirement{{ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: corev1.ScopeSelectorOpIn, Values: []string{"system-cluster-critical"}}}
			if diff := cmp.Diff(want, quota.Spec.ScopeSelector.MatchExpressions); diff != "" {
				t.Errorf("it is about (-want +got):\n%s", diff)
			}
			var replicas int64
			for _, count := range profile.deployments {
				replicas += int64(count)
			}
			if most := quota.Spec.Hard.Pods().Value(); most < 2*replicas {
				t.Errorf("it admits %d Pods, and there are %d", most, replicas)
			}
		})
	}
}

// drainTime is how long a process takes to stop: it serves on for --drain-grace,
// gives requests in flight 10 s, and has 5 s to release its lease.
func drainTime(t *testing.T, args []string) time.Duration {
	t.Helper()
	grace := 5 * time.Second
	for _, arg := range args {
		if value, ok := strings.CutPrefix(arg, "--drain-grace="); ok {
			var err error
			if grace, err = time.ParseDuration(value); err != nil {
				t.Fatal(err)
			}
		}
	}
	return grace + 15*time.Second
}

// The hardened profile has the roles of the default one, each Deployment its own.
func TestHardenedProfileSplitsTheRoles(t *testing.T) {
	shared, leaders := "sidecarset-operator sidecarset-certificates", "sidecarset-controller sidecarset-certificates-leader"
	for _, kind := range []string{"ClusterRoleBinding", "RoleBinding"} {
		bindings := all[rbacv1.ClusterRoleBinding](t, hardened, kind) // a RoleBinding has the same members
		for name, binding := range bindings {
			want := "sidecarset-webhook"
			switch {
			case strings.Contains(shared, binding.RoleRef.Name):
				want = "sidecarset-webhook sidecarset-controller"
			case strings.Contains(leaders, binding.RoleRef.Name):
				want = "sidecarset-controller"
			}
			var subjects []string
			for _, subject := range binding.Subjects {
				subjects = append(subjects, subject.Name)
			}
			if got := strings.Join(subjects, " "); got != want || binding.RoleRef.Name != name {
				t.Errorf("%s %s gives %s to %q, want %q", kind, name, binding.RoleRef.Name, got, want)
			}
		}
		if len(bindings) < 3 {
			t.Errorf("%d %ss, want three at least", len(bindings), kind)
		}
	}
	for name, deployment := range all[appsv1.Deployment](t, hardened, "Deployment") {
		pod := deployment.Spec.Template.Spec
		role := strings.TrimPrefix(name, "sidecarset-")
		if pod.ServiceAccountName != name || pod.Containers[0].Args[0] != "--role="+role {
			t.Errorf("%s runs as %s with %s", name, pod.ServiceAccountName, pod.Containers[0].Args[0])
		}
	}
	if accounts := all[corev1.ServiceAccount](t, hardened, "ServiceAccount"); len(accounts) != 2 {
		t.Errorf("%d ServiceAccounts, want 2", len(accounts))
	}
}

// Processes that the network reaches write reviews, and events about Pods that they refused, and nothing else. They
// create PodTemplates under dry-run, from which RBAC cannot tell the right.
func TestTheHardenedWebhookMayWriteOnlyReviewsAndEvents(t *testing.T) {
	allowed := map[string][]string{
		"ClusterRole": {"tokenreviews", "subjectaccessreviews"},
		"Role":        {"events", "podtemplates"},
	}
	for _, kind := range []string{"ClusterRole", "Role"} {
		roles := all[rbacv1.ClusterRole](t, hardened, kind)
		for _, name := range []string{"sidecarset-operator", "sidecarset-certificates", "sidecarset-webhook"} {
			for _, rule := range roles[name].Rules {
				for _, verb := range rule.Verbs {
					if slices.Contains([]string{"get", "list", "watch"}, verb) {
						continue
					}
					for _, resource := range rule.Resources {
						if !slices.Contains(allowed[kind], resource) {
							t.Errorf("%s %s may %s %s; give the marker roleName=sidecarset-controller, or say here why the webhook needs it", kind, name, verb, resource)
						}
					}
				}
			}
		}
	}
}

// Services and NetworkPolicies let the network reach what serves, and no other.
func TestTheHardenedProfileExposesOnlyServingPorts(t *testing.T) {
	deployments := all[appsv1.Deployment](t, hardened, "Deployment")
	for name, service := range all[corev1.Service](t, hardened, "Service") {
		for deployment := range profiles["hardened"].deployments {
			d := deployments[deployment]
			want := deployment == "sidecarset-webhook" || name == "sidecarset-metrics"
			if got := labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(d.Spec.Template.Labels)); got != want {
				t.Errorf("Service %s reaches %s: %v, want %v", name, deployment, got, want)
			}
		}
	}
	want := map[string]string{
		"sidecarset-webhook":    "webhook metrics",
		"sidecarset-controller": "metrics",
	}
	for deployment, open := range want {
		d := deployments[deployment]
		var ports []string
		for _, policy := range all[networkingv1.NetworkPolicy](t, hardened, "NetworkPolicy") {
			if !selects(t, &policy.Spec.PodSelector, &d) {
				continue
			}
			for _, rule := range policy.Spec.Ingress {
				for _, port := range rule.Ports {
					ports = append(ports, port.Port.StrVal)
				}
			}
		}
		if got := strings.Join(ports, " "); got != open {
			t.Errorf("%s can be called on %q, want %q", deployment, got, open)
		}
		for _, port := range d.Spec.Template.Spec.Containers[0].Ports {
			// A kubelet reaches the Pods of its node whatever a NetworkPolicy says.
			if port.Name != "probes" && !slices.Contains(ports, port.Name) {
				t.Errorf("%s declares port %s, which no client may call", deployment, port.Name)
			}
		}
	}
}
