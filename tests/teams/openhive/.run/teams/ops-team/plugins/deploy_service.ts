export const deploy_service = tool({});
