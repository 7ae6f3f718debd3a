package main

import (
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// withoutProbes drops what the framework logs each time a probe fails: it names
// no check and no reason. addReadiness logs both, once per change.
func withoutProbes() zap.Option {
	return zap.WrapCore(func(core zapcore.Core) zapcore.Core { return probeFilter{core} })
}

type probeFilter struct{ zapcore.Core }

func (f probeFilter) With(fields []zapcore.Field) zapcore.Core {
	return probeFilter{f.Core.With(fields)}
}

func (f probeFilter) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if entry.LoggerName == "controller-runtime.healthz" {
		return checked
	}
	return f.Core.Check(entry, checked)
}
