{{- define "paceline.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "paceline.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "paceline.labels" -}}
{{ include "paceline.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "paceline.image" -}}
{{ printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end -}}

{{- define "paceline.hasQueue" -}}
{{- if or .Values.queue.url .Values.queue.existingSecret }}yes{{ end -}}
{{- end -}}

{{/* The address may hold a password: then it comes from a variable that Kubernetes puts in. */}}
{{- define "paceline.queueArg" -}}
{{- if .Values.queue.existingSecret -}}
--queue=$(QUEUE_URL)
{{- else -}}
--queue={{ .Values.queue.url }}
{{- end -}}
{{- end -}}

{{/* What would fail at run time, or lose work, is refused here, in words. */}}
{{- define "paceline.refuse" -}}
{{- $v := .Values -}}
{{- $many := or $v.autoscaling.enabled (gt (int $v.replicaCount) 1) -}}
{{- if and $v.jobs.enabled $many -}}
{{- fail "jobs.enabled: one server writes a data directory, so set replicaCount to 1 and autoscaling.enabled to false" -}}
{{- end -}}
{{- if and $v.jobs.enabled (not $v.persistence.enabled) -}}
{{- fail "jobs.enabled: jobs without persistence.enabled would be lost with the pod" -}}
{{- end -}}
{{- if and $v.persistence.enabled $many (ne $v.persistence.accessMode "ReadWriteMany") -}}
{{- fail "persistence: more than one server on a volume needs accessMode ReadWriteMany" -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (gt (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas)) -}}
{{- fail "autoscaling: minReplicas is more than maxReplicas" -}}
{{- end -}}
{{- if and $v.apiKeys.existingSecret $v.inferencePool.enabled -}}
{{- fail "inferencePool.enabled: the endpoint picker reads /metrics without a key, so leave apiKeys empty and check keys at the gateway" -}}
{{- end -}}
{{- if and $v.inferencePool.enabled (not $v.inferencePool.endpointPicker.name) -}}
{{- fail "inferencePool.enabled: name the endpoint picker's Service in inferencePool.endpointPicker.name" -}}
{{- end -}}
{{- if and $v.serviceMonitor.enabled $v.apiKeys.existingSecret (not $v.serviceMonitor.authSecret.name) -}}
{{- fail "serviceMonitor.enabled: with apiKeys, /metrics needs a key; name a Secret in serviceMonitor.authSecret.name" -}}
{{- end -}}
{{- if and $v.workers.enabled (not (include "paceline.hasQueue" .)) -}}
{{- fail "workers.enabled: workers need queue.url or queue.existingSecret" -}}
{{- end -}}
{{- if and $v.queue.url $v.queue.existingSecret -}}
{{- fail "queue: give url or existingSecret, not both" -}}
{{- end -}}
{{- end -}}

{{/* Parts of a pod that servers and workers share. */}}
{{- define "paceline.podCommon" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  # Large volumes are not walked through at every start.
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.topologySpreadConstraints }}
topologySpreadConstraints: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "paceline.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "paceline.env" -}}
- name: PACELINE_CACHE
  value: {{ if eq .Values.model "default" }}/usr/share/paceline/models{{ else }}/data/models{{ end }}
- name: HF_HOME
  value: /data/huggingface
{{- with .Values.huggingFace.existingSecret }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $.Values.huggingFace.key }}
{{- end }}
{{- with .Values.queue.existingSecret }}
- name: QUEUE_URL
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $.Values.queue.key }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "paceline.mounts" -}}
- name: data
  mountPath: /data
- name: tmp
  mountPath: /tmp
{{- if .Values.models.existingClaim }}
- name: models
  mountPath: {{ .Values.models.mountPath }}
  readOnly: true
{{- end }}
{{- end -}}

{{- define "paceline.volumes" -}}
- name: tmp
  emptyDir:
    sizeLimit: 1Gi
{{- with .Values.models.existingClaim }}
- name: models
  persistentVolumeClaim:
    claimName: {{ . }}
    readOnly: true
{{- end }}
{{- end -}}
