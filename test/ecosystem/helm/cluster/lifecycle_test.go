package cluster

import (
	"testing"

	"k8s.io/client-go/kubernetes"

	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/ecosystem/helm"
	"github.com/sidecarset/operator/test/testkit"
)

// A release is installed, upgraded from the chart of before, rolled back and uninstalled, while Pods are created. No Pod
// is refused, each gets its sidecar while the release is there, and nothing that refuses a Pod is left.
func TestALifeOfARelease(t *testing.T) {
	for value, profile := range map[string]deploy.Profile{"default": deploy.Default, "hardened": deploy.Hardened} {
		t.Run(value, func(t *testing.T) {
			h := newHelm(t, deploy.Namespace)
			if _, err := h.Install(helm.Release, previousChart(t), nil, "profile="+value); err != nil {
				t.Fatal(err)
			}
			defer clean(t, deploy.Namespace)
			o, err := deploy.Adopt(t.Context(), cluster, profile)
			if err != nil {
				t.Fatal(err)
			}
			running := newFleet(t, o, value)
			namespace := newNamespace(t)
			applySidecarSet(t, value, namespace)
			load := testkit.Load{
				Clients: []kubernetes.Interface{o.Clients}, Namespace: namespace, Labels: testkit.AppLabels(value),
				Sidecars: []string{value}, Rate: 20, DryRun: testkit.Scaled(true, false),
			}
			pods := load.Start(t.Context())
			before := webhooks(t)
			if len(before) == 0 {
				t.Error("no shard has a webhook")
			}

			if err := h.Upgrade(t.Context(), helm.Release, helm.Directory(), nil, "profile="+value, "labels.upgraded=yes"); err != nil {
				t.Fatal(err)
			}
			running.replace(t)
			for _, change := range changes(before, webhooks(t)) {
				t.Errorf("the upgrade changed the webhooks of %s", change)
			}
			if err := h.Rollback(helm.Release); err != nil {
				t.Fatal(err)
			}
			running.replace(t)
			for _, change := range changes(before, webhooks(t)) {
				t.Errorf("the rollback changed the webhooks of %s", change)
			}
			testkit.AwaitReady(t, api, value)
			figures := pods.Stop()
			testkit.Report(t, "upgrade and rollback of the profile %s: %s", value, &figures)
			if figures.Failed > 0 || figures.Uninjected > 0 || figures.Created == 0 {
				t.Errorf("Pods: %s; %q", &figures, figures.Errors)
			}

			pods = load.Start(t.Context())
			if err := h.Uninstall(helm.Release); err != nil {
				t.Fatal(err)
			}
			running.stop(t)
			nothingRefusesPods(t, namespace, value)
			if figures := pods.Stop(); figures.Failed > 0 {
				t.Errorf("the uninstall refused %d Pods of %d: %q", figures.Failed, figures.Created+figures.Failed, figures.Errors)
			}
			if left := testkit.Kubectl(t, cluster, "", "get", "sidecarset", value, "-o", "name"); left == "" {
				t.Error("the SidecarSet is gone")
			}
			left := testkit.Kubectl(t, cluster, "", "get", "-A", "-o", "name", "-l", "app.kubernetes.io/instance="+helm.Release,
				"deployments,services,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,networkpolicies,poddisruptionbudgets,resourcequotas,flowschemas,prioritylevelconfigurations")
			if left != "" {
				t.Errorf("there are %s", left)
			}
		})
	}
}

// fleet is the replicas of a release, which a test replaces as the Deployments of the profile would.
type fleet struct {
	operator *deploy.Operator
	roles    []string
	replicas []*deploy.Replica
	next     int
}

func newFleet(t *testing.T, o *deploy.Operator, layout string) *fleet {
	t.Helper()
	f := &fleet{operator: o, roles: []string{"all", "all"}, next: 1}
	if layout == "hardened" {
		f.roles = []string{"controller", "webhook", "webhook"} // the leader makes the certificate without which no webhook is ready
	}
	for _, role := range f.roles {
		f.replicas = append(f.replicas, f.start(t, role))
	}
	return f
}

func (f *fleet) start(t *testing.T, role string) *deploy.Replica {
	t.Helper()
	f.next++
	return replica(t, f.operator, f.next-1, "--role="+role, "--drain-grace=5s")
}

// replace starts a new replica before each old one stops.
func (f *fleet) replace(t *testing.T) {
	t.Helper()
	for i, old := range f.replicas {
		f.replicas[i] = f.start(t, f.roles[i])
		if err := old.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// stop ends all replicas, as the deletion of the Deployments does.
func (f *fleet) stop(t *testing.T) {
	t.Helper()
	for _, r := range f.replicas {
		if err := r.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
