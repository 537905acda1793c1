{{- define "labels" -}}
app.kubernetes.io/name: escrow-relayer
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "selector" -}}
app.kubernetes.io/name: escrow-relayer
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
