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
	calls := &status.Readiness{Reason: appsv1beta1.ReasonNotInForce, Message: "no answer"}
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
		"calls that are not answered":    {readiness.Installation{Served: true, Calls: calls}, appsv1beta1.ReasonNotInForce, "no answer"},
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
	proven := readiness.Entry{Written: true, Proven: true}
	wrong := errors.New("wrong")
	tests := map[string]struct {
		given            readiness.SidecarSet
		is, want, saying string
	}{
		"in force":                               {readiness.SidecarSet{Entry: proven}, yes, appsv1beta1.ReasonReady, "The next Pod"},
		"selectors, before all else":             {readiness.SidecarSet{Selectors: wrong, Nothing: "nothing", Paused: true, Invalid: wrong}, no, appsv1beta1.ReasonEntryRefused, "not valid in a webhook entry: wrong"},
		"nothing to select":                      {readiness.SidecarSet{Nothing: "It selects nothing", Paused: true, Entry: proven}, no, appsv1beta1.ReasonNothingSelected, "It selects nothing."},
		"paused":                                 {readiness.SidecarSet{Paused: true, Invalid: wrong, Entry: proven}, no, appsv1beta1.ReasonPaused, "paused"},
		"what no Pod can have":                   {readiness.SidecarSet{Invalid: wrong, Entry: readiness.Entry{NoObject: "gone"}}, no, appsv1beta1.ReasonInvalid, "refused: wrong"},
		"no object for the entry":                {readiness.SidecarSet{Entry: readiness.Entry{NoObject: "gone", Fought: "sidecarset-pods-3", Problem: errors.New("not found")}}, no, appsv1beta1.ReasonEntryMissing, "gone"},
		"no place for the entry":                 {readiness.SidecarSet{Entry: readiness.Entry{NoPlace: errors.New("its slot is full"), Problem: errors.New("a conflict")}}, no, appsv1beta1.ReasonNotInForce, "has no place: its slot is full"},
		"an object that is fought over":          {readiness.SidecarSet{Entry: readiness.Entry{Fought: "sidecarset-pods-3", Written: true, Proven: true}}, no, appsv1beta1.ReasonEntryEdited, "sidecarset-pods-3"},
		"a program that is known":                {readiness.SidecarSet{Entry: readiness.Entry{Fought: "sidecarset-pods-3", By: "kyverno"}}, no, appsv1beta1.ReasonEntryEdited, "(field manager kyverno) keeps editing"},
		"narrowed by others":                     {readiness.SidecarSet{Entry: readiness.Entry{Written: true, Proven: true, Narrowed: "namespaces by !a"}}, yes, appsv1beta1.ReasonReady, "will be injected. Another program leaves out namespaces by !a."},
		"refused by Pod Security":                {readiness.SidecarSet{Entry: proven, PodSecurity: "Pod Security refuses it."}, yes, appsv1beta1.ReasonReady, "will be injected. Pod Security refuses it."},
		"narrowed to nothing":                    {readiness.SidecarSet{Entry: readiness.Entry{Written: true, Proven: true, Narrowed: "namespaces by !a", LeavesAllOut: true}}, no, appsv1beta1.ReasonEntryEdited, "leaves out namespaces by !a. These are all"},
		"an entry that is lost to others":        {readiness.SidecarSet{Entry: readiness.Entry{Fought: "sidecarset-pods-3", Problem: errors.New("a conflict")}}, no, appsv1beta1.ReasonEntryEdited, "sidecarset-pods-3"},
		"an entry that is not written":           {readiness.SidecarSet{}, no, appsv1beta1.ReasonNotInForce, "not written yet."},
		"an entry that cannot be written":        {readiness.SidecarSet{Entry: readiness.Entry{Problem: errors.New("a policy forbids it")}}, no, appsv1beta1.ReasonNotInForce, "not written: a policy forbids it"},
		"an entry that is not proven":            {readiness.SidecarSet{Entry: readiness.Entry{Written: true, Problem: errors.New("API server a is silent")}}, unsure, appsv1beta1.ReasonNotInForce, "restart the API servers that this names: API server a is silent"},
		"a conflict with another SidecarSet":     {readiness.SidecarSet{Conflict: "both have container c", Entry: proven}, no, appsv1beta1.ReasonConflict, "are refused: both have container c"},
		"a question that is refused":             {readiness.SidecarSet{Entry: readiness.Entry{Written: true, Unasked: true, Problem: errors.New("exceeded quota")}}, unsure, appsv1beta1.ReasonNotProven, "refuses them: exceeded quota"},
		"static, without an entry":               {readiness.SidecarSet{Static: &readiness.Static{}, Entry: proven}, no, appsv1beta1.ReasonEntryMissing, "config/overlays/static"},
		"static, while replicas may not know it": {readiness.SidecarSet{Static: &readiness.Static{Present: true, Settles: true}}, unsure, appsv1beta1.ReasonNotInForce, "may not have seen"},
		"static":                                 {readiness.SidecarSet{Static: &readiness.Static{Present: true}}, yes, appsv1beta1.ReasonReady, "The next Pod"},
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
	is := readiness.Of(readiness.SidecarSet{Entry: readiness.Entry{Written: true, Proven: true}})
	if got := (readiness.Installation{}).Complete(is); got != is {
		t.Errorf("got %+v", got)
	}
	got := readiness.Installation{LeftOut: "10.0.0.2:6443 (Unauthorized)"}.Complete(is)
	if !got.Ready || !strings.HasSuffix(got.Message, "none answers the operator there: 10.0.0.2:6443 (Unauthorized).") {
		t.Errorf("got %+v", got)
	}
}
