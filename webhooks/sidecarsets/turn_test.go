package sidecarsets

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/hub"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/requester"
	"github.com/sidecarset/operator/webhooks/server"
)

// late is access whose questions wait for their turn without success.
type late struct{}

func (late) Allowed(context.Context, authenticationv1.UserInfo, requester.Question) (bool, error) {
	return false, fmt.Errorf("reviewing access: %w", errNoTurn)
}

// The check is never skipped: an unauthenticated client who uses up the questions must not turn it off.
func TestAReviewWithoutATurnIsNotAdmitted(t *testing.T) {
	for _, mode := range []RequesterMode{RequesterWarn, RequesterEnforce} {
		check := NewRequesterCheck(RequesterCheckOptions{Mode: mode, Access: late{}, Store: func() *match.Snapshot { return match.Build(nil, nil) }})
		set := &hub.SidecarSet{Object: fixtures.SidecarSet("log").Select("app", "web").Container("log", "log:v1").Map(), Set: fixtures.LogSet(1)}
		warnings, err := check.Check(t.Context(), authenticationv1.UserInfo{Username: "ghost"}, set, nil)
		refusal := new(server.Refusal)
		if !errors.As(err, &refusal) || refusal.Code != http.StatusServiceUnavailable || refusal.RetryAfter == 0 || len(warnings) > 0 {
			t.Errorf("%s: %v, and warnings %v", mode, err, warnings)
		}
	}
}
