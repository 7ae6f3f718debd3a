package operator

import (
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// mostVerbose is the highest level that is logged, even if --zap-log-level is higher.
// Above it client-go logs its requests, from 8 on with their bodies, which may hold
// Secrets and the environment of containers.
const mostVerbose = 5

// filterLog drops messages that must never be logged.
func filterLog() zap.Option {
	return zap.WrapCore(func(core zapcore.Core) zapcore.Core { return logFilter{core} })
}

type logFilter struct{ zapcore.Core }

func (f logFilter) With(fields []zapcore.Field) zapcore.Core {
	return logFilter{f.Core.With(fields)}
}

func (f logFilter) Enabled(level zapcore.Level) bool {
	return level >= -mostVerbose && f.Core.Enabled(level)
}

func (f logFilter) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if !f.Enabled(entry.Level) {
		return checked
	}
	return f.Core.Check(entry, checked)
}
