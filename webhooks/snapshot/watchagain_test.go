package snapshot

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
)

var podResource = schema.GroupResource{Resource: "pods"}

func versionTooLarge() error {
	err := apierrors.NewTimeoutError("Too large resource version: 9, current: 7", 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
	return err
}

func TestWatchesTryAgainWhatMayHeal(t *testing.T) {
	tests := map[string]struct {
		err   error
		again bool
	}{
		"no connection":                     {errors.New("connect: connection refused"), true},
		"a server that fails":               {apierrors.NewInternalError(errors.New("etcd is away")), true},
		"too many requests":                 {apierrors.NewTooManyRequests("later", 1), true},
		"roles that are not known yet":      {apierrors.NewForbidden(podResource, "", errors.New("not yet")), true},
		"a resourceVersion that is too old": {apierrors.NewResourceExpired("too old"), false},
		"one that is too large":             {versionTooLarge(), false},
		"a kind that is not there":          {apierrors.NewNotFound(podResource, ""), false},
		"a request that was given up":       {fmt.Errorf("watching: %w", context.Canceled), false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				attempts := 0
				got, err := persist(t.Context(), "Pod", func() (int, error) {
					if attempts++; attempts < 3 {
						return 0, tc.err
					}
					return 7, nil
				})
				if tc.again && (got != 7 || err != nil || attempts != 3) {
					t.Errorf("got %d, %v after %d attempts", got, err, attempts)
				}
				if !tc.again && (!errors.Is(err, tc.err) || attempts != 1) {
					t.Errorf("got %v after %d attempts, want %v after one", err, attempts, tc.err)
				}
			})
		})
	}
}

// outage is a source of an informer that answers, unless it is away.
type outage struct{ away atomic.Bool }

func (o *outage) List(metav1.ListOptions) (runtime.Object, error) {
	if o.away.Load() {
		return nil, errors.New("connection refused")
	}
	return &corev1.NamespaceList{}, nil
}

func (*outage) Watch(metav1.ListOptions) (watch.Interface, error) { return watch.NewFake(), nil }
func (*outage) IsWatchListSemanticsUnSupported() bool             { return true }

func TestInformersAreSoonBackAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &outage{}
		source.away.Store(true)
		informer := newInformer(source, &corev1.Namespace{}, 0, toolscache.Indexers{})
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		go informer.RunWithContext(ctx)
		<-time.After(time.Hour)
		source.away.Store(false)
		<-time.After(WatchPause.Cap * 3 / 2)
		if synctest.Wait(); !informer.HasSynced() {
			t.Error("it has not listed")
		}
	})
}
