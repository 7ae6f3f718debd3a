package operator

import (
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/sidecarset/operator/controllers/executor"
)

// watchLease makes a manager elect its leader with a lock that knows when it was last
// renewed. It returns nil, and changes nothing, if there is no election.
func watchLease(config *rest.Config, o *ctrl.Options) (*executor.Leadership, error) {
	if !o.LeaderElection {
		return nil, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	leadership := executor.NewLeadership(*o.LeaseDuration, *o.RenewDeadline)
	o.LeaderElectionResourceLockInterface, err = leadership.Lock(config, o.LeaderElectionNamespace, o.LeaderElectionID, host+"_"+string(uuid.NewUUID()))
	if err != nil {
		return nil, fmt.Errorf("making the lock of the leader: %w", err)
	}
	return leadership, nil
}
