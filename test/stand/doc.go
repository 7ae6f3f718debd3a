// Package stand gives a test package a real Kubernetes control plane, and runs
// the processes that are tested beside it. It is imported by tests only.
//
// It drives the launcher in test/controlplane as a program and knows neither
// Kubernetes' flags nor how it is built. A test package has one cluster:
//
//	var cluster *stand.Cluster
//
//	func TestMain(m *testing.M) {
//		os.Exit(stand.Main(m, stand.Options{Full: true, Nodes: 3}, begin))
//	}
//
// and every test takes a new namespace in it. All processes that this package starts end with
// the test binary, even if the test binary is killed.
//
// The environment may say:
//
//	STAND        a launcher to use instead of building the one in this checkout
//	K8S_VERSION  the Kubernetes version, as v1.36.4; default: that of
//	             test/controlplane/go.mod
//	SHARDS       how many processes share the tests of a package, instead of
//	             Options.Processes
//	STAND_GOGC   GOGC of the control plane, of kubectl and of the test; default: 400
package stand
