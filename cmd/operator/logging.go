package operator

import (
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// mostVerbose is the highest level that is logged, even if --zap-log-level is higher.
// Above it client-go logs its requests, from 8 on with their bodies, which may hold
// Secrets and the environment of containers.
const mostVerbose = 5

// filterLog drops messages that must never be logged.
func filterLog() zap.Option {
	return zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		filtered, err := zapcore.NewIncreaseLevelCore(core, zap.LevelEnablerFunc(func(level zapcore.Level) bool {
			return level >= -mostVerbose && core.Enabled(level)
		}))
		utilruntime.Must(err) // it enables no level that core does not
		return filtered
	})
}
