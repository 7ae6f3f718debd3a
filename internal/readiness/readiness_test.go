package readiness_test

import (
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"testing"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/readiness"
	"github.com/sidecarset/operator/internal/status"
)

func TestObstaclesOfTheInstallation(t *testing.T) {
	calls := &status.Readiness{Reason: appsv1beta1.ReasonPending, Message: "no answer"}
	expired := fmt.Errorf("checking: %w", x509.CertificateInvalidError{Reason: x509.Expired})
	unknown := errors.New("signed by unknown authority")
	tests := map[string]struct {
		given        readiness.Installation
		want, saying string // "" if there is no obstacle
	}{
		"nothing":                        {readiness.Installation{Served: true}, "", ""},
		"another injector":               {readiness.Installation{OtherInjector: "OpenKruise injects as well", Certificate: unknown}, appsv1beta1.ReasonAnotherInjector, "OpenKruise"},
		"no replica, whatever else":      {readiness.Installation{Namespace: "ours", Certificate: unknown, Calls: calls}, appsv1beta1.ReasonNoReplica, "in namespace ours"},
		"a certificate":                  {readiness.Installation{Served: true, Certificate: unknown, Calls: calls}, appsv1beta1.ReasonCertificateNotTrusted, "unknown authority"},
		"a certificate that has expired": {readiness.Installation{Served: true, Certificate: expired}, appsv1beta1.ReasonCertificateExpired, "has expired"},
		"calls that are not answered":    {readiness.Installation{Served: true, Calls: calls}, appsv1beta1.ReasonPending, "no answer"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := tc.given.Obstacle()
			if got == nil {
				got = &status.Readiness{}
			}
			if got.Reason != tc.want || !strings.Contains(got.Message, tc.saying) || got.Ready {
				t.Errorf("got %+v", *got)
			}
		})
	}
}

func TestReadinessOfASidecarSet(t *testing.T) {
	const no, unsure, yes = "False", "unsure", "True"
	propagated := readiness.Webhook{Written: true, Propagated: true}
	wrong := errors.New("wrong")
	tests := map[string]struct {
		given            readiness.SidecarSet
		is, want, saying string
	}{
		"Ready":                                  {readiness.SidecarSet{Webhook: propagated}, yes, appsv1beta1.ReasonInjecting, "The next Pod"},
		"selectors, before all else":             {readiness.SidecarSet{Selectors: wrong, Nothing: "nothing", Paused: true, Invalid: wrong}, no, appsv1beta1.ReasonWebhookRejected, "not valid in a Pod webhook: wrong"},
		"nothing to select":                      {readiness.SidecarSet{Nothing: "It selects nothing", Paused: true, Webhook: propagated}, no, appsv1beta1.ReasonNothingSelected, "It selects nothing."},
		"paused":                                 {readiness.SidecarSet{Paused: true, Invalid: wrong, Webhook: propagated}, no, appsv1beta1.ReasonPaused, "paused"},
		"what no Pod can have":                   {readiness.SidecarSet{Invalid: wrong, Webhook: readiness.Webhook{NoObject: "gone"}}, no, appsv1beta1.ReasonInvalid, "refused: wrong"},
		"no object for the webhook":              {readiness.SidecarSet{Webhook: readiness.Webhook{NoObject: "gone", Modified: "sidecarset-pods-3", Problem: errors.New("not found")}}, no, appsv1beta1.ReasonWebhookConfigurationMissing, "gone"},
		"no room for the webhook":                {readiness.SidecarSet{Webhook: readiness.Webhook{NoPlace: errors.New("its shard is full"), Problem: errors.New("a conflict")}}, no, appsv1beta1.ReasonWebhookConfigurationFull, "no room for the Pod webhook: its shard is full"},
		"an object that is modified elsewhere":   {readiness.SidecarSet{Webhook: readiness.Webhook{Modified: "sidecarset-pods-3", Written: true, Propagated: true}}, no, appsv1beta1.ReasonWebhookModified, "sidecarset-pods-3"},
		"a program that is known":                {readiness.SidecarSet{Webhook: readiness.Webhook{Modified: "sidecarset-pods-3", By: "kyverno"}}, no, appsv1beta1.ReasonWebhookModified, "(field manager kyverno) keeps editing"},
		"restricted by others":                   {readiness.SidecarSet{Webhook: readiness.Webhook{Written: true, Propagated: true, Restricted: "namespaces by !a"}}, yes, appsv1beta1.ReasonInjecting, "will be injected. Another program leaves out namespaces by !a."},
		"refused by Pod Security":                {readiness.SidecarSet{Webhook: propagated, PodSecurity: "Pod Security refuses it."}, yes, appsv1beta1.ReasonInjecting, "will be injected. Pod Security refuses it."},
		"restricted to nothing":                  {readiness.SidecarSet{Webhook: readiness.Webhook{Written: true, Propagated: true, Restricted: "namespaces by !a", ExcludesAll: true}}, no, appsv1beta1.ReasonNamespacesExcluded, "leaves out namespaces by !a. These are all"},
		"a webhook that is lost to others":       {readiness.SidecarSet{Webhook: readiness.Webhook{Modified: "sidecarset-pods-3", Problem: errors.New("a conflict")}}, no, appsv1beta1.ReasonWebhookModified, "sidecarset-pods-3"},
		"a webhook that is not written":          {readiness.SidecarSet{}, no, appsv1beta1.ReasonPending, "not written yet."},
		"a webhook that cannot be written":       {readiness.SidecarSet{Webhook: readiness.Webhook{Problem: errors.New("a policy forbids it")}}, no, appsv1beta1.ReasonPending, "not written: a policy forbids it"},
		"a webhook that is not propagated":       {readiness.SidecarSet{Webhook: readiness.Webhook{Written: true, Problem: errors.New("API server a is silent")}}, unsure, appsv1beta1.ReasonPending, "restart the API servers that this names: API server a is silent"},
		"a conflict with another SidecarSet":     {readiness.SidecarSet{Conflict: "both have container c", Webhook: propagated}, no, appsv1beta1.ReasonConflict, "are refused: both have container c"},
		"a question that is refused":             {readiness.SidecarSet{Webhook: readiness.Webhook{Written: true, Unasked: true, Problem: errors.New("exceeded quota")}}, unsure, appsv1beta1.ReasonWebhookUnverified, "refuses them: exceeded quota"},
		"static, without a webhook":              {readiness.SidecarSet{Static: &readiness.Static{}, Webhook: propagated}, no, appsv1beta1.ReasonWebhookConfigurationMissing, "config/overlays/static"},
		"static, while replicas may not know it": {readiness.SidecarSet{Static: &readiness.Static{Present: true, PropagationTime: true}}, unsure, appsv1beta1.ReasonPending, "may not have seen"},
		"static":                                 {readiness.SidecarSet{Static: &readiness.Static{Present: true}}, yes, appsv1beta1.ReasonInjecting, "The next Pod"},
		"static, and what no Pod can have":       {readiness.SidecarSet{Static: &readiness.Static{Present: true}, Invalid: wrong}, no, appsv1beta1.ReasonInvalid, "refused: wrong"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := readiness.Of(tc.given)
			is := map[[2]bool]string{{false, false}: no, {false, true}: unsure, {true, false}: yes}[[2]bool{got.Ready, got.Unsure}]
			if is != tc.is || got.Reason != tc.want || !strings.Contains(got.Message, tc.saying) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestAddressesThatAreLeftOutAreNamed(t *testing.T) {
	is := readiness.Of(readiness.SidecarSet{Webhook: readiness.Webhook{Written: true, Propagated: true}})
	if got := (readiness.Installation{}).Complete(is); got != is {
		t.Errorf("got %+v", got)
	}
	got := readiness.Installation{LeftOut: "10.0.0.2:6443 (Unauthorized)"}.Complete(is)
	if !got.Ready || !strings.HasSuffix(got.Message, "none answers the operator there: 10.0.0.2:6443 (Unauthorized).") {
		t.Errorf("got %+v", got)
	}
}
