if obj.status == nil or obj.status.observedGeneration ~= obj.metadata.generation then
  return {status = "Progressing", message = "The operator has not seen this generation yet."}
end
local is = {}
for _, c in ipairs(obj.status.conditions or {}) do is[c.type] = c end
if is.Degraded and is.Degraded.status == "True" then return {status = "Degraded", message = is.Degraded.message} end
local injection = obj.spec.injectionStrategy
if not is.Ready and injection and injection.paused then return {status = "Suspended", message = is.Accepted and is.Accepted.message} end
if not is.Ready or is.Ready.status ~= "True" then
  return {status = "Progressing", message = is.Ready and is.Ready.message or "Ready is not known yet."}
end
if is.Progressing and is.Progressing.status == "True" then return {status = "Progressing", message = is.Progressing.message} end
if is.Progressing and is.Progressing.reason == "Paused" then return {status = "Suspended", message = is.Progressing.message} end
return {status = "Healthy", message = is.Ready.message}
